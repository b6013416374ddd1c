"""One spelling for each device, so that two handles of one device are equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["CURRENT_INDEX", "device_name"]

CURRENT_INDEX: Final[dict[str, Callable[[], int]]] = {}
"""For a device type ("cuda"), what tells the index that an unnumbered name stands for; 0 where none is given."""


def device_name(device: object) -> str:
    """The one name of a device: its type, a colon, its index.

    Parameters
    ----------
    device : object
        A name (``"cpu"``, ``"cuda"``, ``"cuda:1"``), or any object whose ``str`` is one, such as ``torch.device``.

    Returns
    -------
    str
        ``"cpu:0"`` for ``"cpu"``; ``"cuda:<current>"`` for ``"cuda"``. Names are compared without regard to case.

    Raises
    ------
    ValueError
        The name is empty, or its index is not a number.

    Examples
    --------
    >>> device_name("cpu"), device_name("CPU:0"), device_name("meta")
    ('cpu:0', 'cpu:0', 'meta:0')
    """
    if type(device) is str and device == "cpu:0":
        return device
    name = str(device).strip().lower()
    kind, colon, index = name.partition(":")
    if not kind or (colon and not index.isdecimal()):
        raise ValueError(f"not a device name: {device!r}; a type and perhaps an index, as in 'cpu' or 'cuda:1'")
    if colon:
        return f"{kind}:{int(index)}"
    current = CURRENT_INDEX.get(kind)
    return f"{kind}:{0 if current is None else current()}"
