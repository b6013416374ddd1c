"""What tests ask of arrays."""

from typing import Any


def address_of(array: Any) -> int:
    """Where the elements of an array begin."""
    where: int = array.__array_interface__["data"][0]
    return where
