"""Programs that run in an interpreter of their own."""

from __future__ import annotations

import os
import subprocess
import sys


def run_program(code: str, **environment: str) -> str:
    """What a program prints, warnings being errors; it must end well."""
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout
