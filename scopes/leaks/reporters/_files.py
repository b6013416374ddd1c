"""Reading report files for the verbs, with one clear line where a file is none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ._json import ReportFileError, report_from_json

if TYPE_CHECKING:
    from .._report import Report

__all__ = ["read_report"]


def read_report(name: str) -> Report:
    """The report in a file, or on the standard input where the name is ``-``.

    Raises
    ------
    ReportFileError
        The file cannot be read, or is no report that this version reads. The message names it and says why.
    """
    try:
        text = sys.stdin.buffer.read().decode("utf-8") if name == "-" else Path(name).read_text(encoding="utf-8")
        return report_from_json(text)
    except OSError as error:
        raise ReportFileError(f"cannot read {name!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ReportFileError(f"{name!r} is no leak report") from None
    except ReportFileError as error:
        raise ReportFileError(f"{name!r} {error}") from None
