"""Write a file as a whole or not at all."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

__all__ = [
    "write_whole",
]


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, so that whoever reads it finds what was there before or all that is new.

    Parameters
    ----------
    path : Path
        A link is followed. A pipe, a terminal, or a file in a folder that nobody may write to, is
        written to directly.
    content : bytes
        All of the file.

    Raises
    ------
    OSError
        It cannot be written. Then a file that was there is unchanged.
    """
    target = Path(os.path.realpath(path))
    if (target.exists() and not target.is_file()) or not os.access(target.parent, os.W_OK):
        path.write_bytes(content)
        return
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        temporary.write_bytes(content)
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise
