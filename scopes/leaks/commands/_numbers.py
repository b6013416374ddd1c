"""Numbers on the command line: bytes, bytes per pass, seconds."""

from __future__ import annotations

import argparse
import math

from ..._budget import parse_budget

__all__ = ["growth_of_text", "nbytes_of_text", "seconds_of_text"]


def nbytes_of_text(text: str) -> int:
    """Bytes, or a number with a unit: ``"512KiB"``."""
    try:
        return parse_budget(int(text) if text.isdecimal() else text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes, such as 4096, 512KiB or 1.5MB") from None


def growth_of_text(text: str) -> int:
    """Bytes per pass: ``"1MiB/pass"``; 0 is none at all."""
    number = text.removesuffix("/pass")
    if number.strip() == "0":
        return 0
    try:
        return nbytes_of_text(number)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is no growth, such as 1MiB/pass or 0/pass") from None


def seconds_of_text(text: str) -> float:
    """A positive number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds
