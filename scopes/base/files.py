"""Write a file as a whole or not at all."""

from __future__ import annotations

import itertools
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = [
    "write_whole",
]

_OPEN_FILES: Final = ("/dev/", "/proc/")
"""Folders whose files are devices or open files: a rename would not write to them."""
_FILE_NUMBERS: Final = itertools.count()
"""The numbers in the names of temporary files."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader finds either the old content or all of the new one.

    Parameters
    ----------
    path : Path
        A link is followed. A pipe, a terminal, a file that is open already (``/dev/stdout``), or a
        file in a folder without write permission is written to directly.
    content : bytes
        The whole content.

    Raises
    ------
    OSError
        The file cannot be written. The old file is unchanged, unless it is written to directly.
    """
    target = Path(os.path.realpath(path))
    is_open = os.path.abspath(path).startswith(_OPEN_FILES) or str(target).startswith(_OPEN_FILES)
    if is_open or (path.exists() and not path.is_file()) or not os.access(target.parent, os.W_OK):
        path.write_bytes(content)
        return
    # A new name for each call, because a signal handler may write the same file meanwhile.
    temporary = target.with_name(f".whole.{os.getpid()}.{next(_FILE_NUMBERS)}")
    try:
        temporary.write_bytes(content)
        if target.exists():
            # Some file systems have no permissions.
            with suppress(OSError):
                shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise
