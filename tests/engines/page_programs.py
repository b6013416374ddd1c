"""Programs of how-to pages that start processes, run on the loopback interface alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_BLOCKS: Final = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_ENVIRONMENT: Final = {
    # PyTorch: gloo asks the name of the machine for an address otherwise.
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    # Ray: its processes meet at 127.0.0.1; nothing is told to anybody, nothing is written to the
    # home folder.
    "RAY_AUTH_MODE": "disabled",
    "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": str(100 << 20),
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def program_of(page: str) -> str:
    """The code of a page, as one program."""
    return "\n".join(_BLOCKS.findall((ROOT / "docs" / "how-to" / page).read_text()))


def shown_by(page: str) -> list[str]:
    """The lines of a report that a page shows, without what differs from run to run."""
    text = (ROOT / "docs" / "how-to" / page).read_text()
    lines = re.findall(r"^  1\. .*$|^     (?:born|grows|held) .*$", text, re.MULTILINE)
    assert len(lines) == 4
    return [line.removesuffix("...") for line in lines]


def environment(**others: str) -> dict[str, str]:
    """The environment of such a process."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths), **others}


def run(*arguments: str | Path, cwd: Path, **others: str) -> str:
    """What `leak-report` says with these arguments, on both outputs."""
    done = subprocess.run(
        [sys.executable, "-m", "disposescope", *map(str, arguments)],
        cwd=cwd,
        env=environment(**others),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
