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
_NUMBERS: Final = itertools.count()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, so that whoever reads it finds what was there before or all that is new.

    Parameters
    ----------
    path : Path
        A link is followed. A pipe, a terminal, a file that is open already (``/dev/stdout``), or
        one in a folder that nobody may write to, is written to directly.
    content : bytes
        All of the file.

    Raises
    ------
    OSError
        It cannot be written. Then a file that was there is unchanged, if it is not one of those.
    """
    target = Path(os.path.realpath(path))
    is_open = os.path.abspath(path).startswith(_OPEN_FILES) or str(target).startswith(_OPEN_FILES)
    if is_open or (path.exists() and not path.is_file()) or not os.access(target.parent, os.W_OK):
        path.write_bytes(content)
        return
    # A name of its own, as short as any: a handler of a signal may write meanwhile.
    temporary = target.with_name(f".whole.{os.getpid()}.{next(_NUMBERS)}")
    try:
        temporary.write_bytes(content)
        if target.exists():
            # Some file systems have no modes.
            with suppress(OSError):
                shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise
