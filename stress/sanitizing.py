"""Tests of the GPU under compute-sanitizer, several processes at a time."""

from __future__ import annotations

import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent.parent
FOUND_ERRORS = 9  # exit status that compute-sanitizer is told to use
TOOLS = ("memcheck", "racecheck")
# With backtraces of the host, compute-sanitizer 2025.3 keeps Python's frames, and all that they refer to, for good:
# tests that count what is let go of would fail.
NO_FRAMES = ("--show-backtrace", "device")

ABSENT = (
    "compute-sanitizer is not on PATH, not in /usr/local/cuda*/bin and not in a package of the interpreter.\n"
    "It comes with the CUDA toolkit, and as pip install nvidia-cuda-sanitizer-api."
)

SHARES: dict[str, tuple[str, ...]] = {
    "dtypes": ("tests/test_gpu_captures.py", "-k", "every_plain_dtype"),
    # numba-cuda-mlir's own slices read out of bounds, of arguments as well: that test compares the two.
    "captures": (
        *("tests/test_gpu_captures.py", "-k"),
        "not every_plain_dtype and not options and not linked and not slices_in_the_kernel",
    ),
    "following": ("tests/test_gpu_following.py", "-k", "not hundred_lengths and not many_values"),
    "spares": ("tests/test_gpu_spares.py", "-k", "not graph"),
    "slotted": ("tests/test_gpu_slotted.py",),
    "members": ("tests/test_gpu_dataclasses.py",),
}
"""What is run by default, each in a process of its own: what pytest is told."""


class Absent(Exception):
    """There is no compute-sanitizer here."""


@dataclass
class Process:
    """One run of pytest under a tool.

    Parameters
    ----------
    tool, share
        What checks, and what is run.
    output, logs
        What pytest says; and a pattern of the tool's logs, one for each process that it watched.
    running
        The process.
    began, ended
        On the monotonic clock.
    """

    tool: str
    share: str
    output: Path
    logs: str
    running: subprocess.Popen[bytes]
    began: float
    ended: float | None = None

    def stop(self) -> None:
        """End it, and what it has started."""
        os.killpg(self.running.pid, signal.SIGKILL)
        self.running.wait()

    def verdict(self) -> str:
        """``"clean"``, or what is wrong; once it has ended."""
        texts = [Path(path).read_text(errors="replace") for path in sorted(glob.glob(self.logs))]
        if any("Device not supported" in text for text in texts):
            return "compute-sanitizer does not support this device here"
        code = self.running.returncode
        errors = sum(int(number) for text in texts for number in SUMMARY.findall(text))
        if code == FOUND_ERRORS or errors:
            return f"{errors} errors: {self.logs}"
        if code < 0:
            return f"out of time, or ended by signal {-code}: {self.output}"
        if code:
            return f"tests failed ({code}): {self.output}"
        if not any(SUMMARY.search(text) for text in texts):
            return f"nothing was checked: no summary in {self.logs}"
        return "clean"


# "ERROR SUMMARY: 2 errors", and "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
SUMMARY = re.compile(r"SUMMARY: (?:\d+ hazards? displayed \()?(\d+) errors?")


def compute_sanitizer() -> str:
    """Path of compute-sanitizer.

    Raises
    ------
    Absent
    """
    for candidate in _candidates():
        found = shutil.which(candidate)
        if found:
            return found
    raise Absent(ABSENT)


def _candidates() -> Iterator[str]:
    yield "compute-sanitizer"
    yield from sorted(glob.glob("/usr/local/cuda*/bin/compute-sanitizer"), reverse=True)
    site = sysconfig.get_path("purelib")
    for folder in dict.fromkeys([site, *sys.path]):
        yield from sorted(glob.glob(os.path.join(folder, "nvidia/*/compute-sanitizer/compute-sanitizer")))


def command(program: str, tool: str, logs: str, selection: Sequence[str], seconds: float) -> list[str]:
    """What runs pytest on a selection under a tool.

    Errors of the driver's interface are not the tool's business: tests provoke them.
    """
    watched = [program, "--tool", tool, "--target-processes", "all", "--report-api-errors", "no", *NO_FRAMES]
    told = ["--error-exitcode", str(FOUND_ERRORS), "--log-file", logs]
    tests = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-q", "-rs"]
    return [*watched, *told, *tests, "-o", f"timeout={int(seconds)}", *selection]


def sanitize(
    folder: Path,
    tools: Iterable[str] = TOOLS,
    shares: Iterable[str] = tuple(SHARES),
    seconds: float = 240.0,
    jobs: int = 6,
    file: TextIO | None = None,
) -> bool:
    """Run shares of the tests under tools, and say of each how it went.

    Parameters
    ----------
    folder
        Where logs are put; made if it is not there.
    seconds
        That each process may take.
    jobs
        How many run at a time.

    Returns
    -------
    bool
        Whether all was clean.

    Raises
    ------
    Absent
        If there is no compute-sanitizer.
    """
    program = compute_sanitizer()
    print(f"{program}: {version(program)}", file=file, flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    waiting = [(tool, share) for tool in tools for share in shares]
    running: list[Process] = []
    clean = True
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_begun(program, folder, *waiting.pop(0), seconds))
            time.sleep(0.2)
            for process in list(running):
                late = time.monotonic() - process.began > seconds
                if process.running.poll() is None and not late:
                    continue
                if process.running.returncode is None:
                    process.stop()
                running.remove(process)
                verdict, took = process.verdict(), time.monotonic() - process.began
                clean = clean and verdict == "clean"
                print(
                    f"{process.tool} {process.share}: {verdict}; {took:.0f} s; {last_line(process.output)}",
                    file=file,
                    flush=True,
                )
    finally:
        for process in running:
            process.stop()
    return clean


def _begun(program: str, folder: Path, tool: str, share: str, seconds: float) -> Process:
    stem = str(folder.resolve() / f"{tool}-{share}")
    for old in glob.glob(f"{glob.escape(stem)}.*"):
        os.remove(old)
    output = Path(f"{stem}.pytest")
    with output.open("wb") as out:
        running = subprocess.Popen(
            command(program, tool, f"{stem}.%p.log", SHARES[share], seconds),
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Process(tool, share, output, f"{stem}.*.log", running, time.monotonic())


def version(program: str) -> str:
    """The last line of what it says of its version."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return (done.stdout.strip() or done.stderr.strip() or "no version").splitlines()[-1]


def last_line(output: Path) -> str:
    """The last line of a file that says something."""
    lines = [line for line in output.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
