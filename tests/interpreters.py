"""Programs in interpreters of their own, as their users start them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def started(program: str, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program; captures are not asked for and the simulator is off unless ``environment`` says so."""
    clean = {name: value for name, value in os.environ.items() if name not in ("CUDA_CAPTURES", "NUMBA_ENABLE_CUDASIM")}
    return subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(program)],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def python(program: str, *flags: str, **environment: str) -> str:
    """What a program prints; it must end well."""
    done = started(program, *flags, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
