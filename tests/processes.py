"""Programs in files, which processes that they start can import."""

from __future__ import annotations

from pathlib import Path

from interpreters import started


def run(directory: Path, program: str, *arguments: str, **environment: str) -> None:
    """Run a program with arguments; it must end well, and print "well"."""
    script = directory / "script.py"
    script.write_text(program)
    command = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, {str(script)!r}, *{arguments!r}]))"
    done = started(command, **environment)
    assert (done.returncode, done.stdout.strip()) == (0, "well"), done.stderr
