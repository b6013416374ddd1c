"""What can go wrong, by name.

Each error is also the built-in that a stranger would catch. The culprit is an attribute (a repr, a
shape, a number of bytes), never the tensor itself: an error that is kept must not keep memory. All
of them are built from one message and survive pickling, because errors cross process borders on
their way out of DataLoader workers.
"""

from __future__ import annotations

__all__ = [
    "DeviceMismatchError",
    "DisposeScopeError",
    "DisposedError",
    "EscapedError",
    "GraphRetainedError",
    "LeakError",
    "LeakWarning",
    "NotOwnedError",
    "ScopeClosedError",
    "ScopeNestingError",
    "UnknownKindError",
]


class DisposeScopeError(Exception):
    """The base of every error that this library raises of its own."""


class ScopeClosedError(DisposeScopeError, RuntimeError):
    """A verb was used on a scope that is closed, or something was moved into one.

    Attributes
    ----------
    scope : str
        The repr of the closed scope.
    """

    def __init__(self, message: str = "", *, scope: str = "") -> None:
        super().__init__(message)
        self.scope = scope


class ScopeNestingError(DisposeScopeError, RuntimeError):
    """A scope was entered twice, left without being entered, or used before it was entered; or none is open.

    Attributes
    ----------
    scope : str
        The repr of the scope, empty where no scope is open.
    """

    def __init__(self, message: str = "", *, scope: str = "") -> None:
        super().__init__(message)
        self.scope = scope


class NotOwnedError(DisposeScopeError, RuntimeError):
    """A strict scope was asked to move or detach what it does not own.

    Attributes
    ----------
    resource, owner : str
        What was named, and the repr of the scope that owns it (``"nobody"`` where it is unowned).
    """

    def __init__(self, message: str = "", *, resource: str = "", owner: str = "") -> None:
        super().__init__(message)
        self.resource = resource
        self.owner = owner


class UnknownKindError(DisposeScopeError, TypeError):
    """An object of a type that is not registered hides a resource, or is named as a resource and is none.

    Attributes
    ----------
    type_name : str
        The qualified name of the type to register.
    path : str
        Where in the tree the object was met.
    """

    def __init__(self, message: str = "", *, type_name: str = "", path: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        self.path = path


class DisposedError(DisposeScopeError, ReferenceError):
    """A disposed resource was used.

    Attributes
    ----------
    resource : str
        Kind, shape, dtype and name of what was used.
    """

    def __init__(self, message: str = "", *, resource: str = "") -> None:
        super().__init__(message)
        self.resource = resource


class EscapedError(DisposeScopeError, RuntimeError):
    """A strict scope was left while plain arrays born in it were still referenced, or exported views of its tensors.

    They stay valid, and belong to the outer scope.

    Attributes
    ----------
    count, nbytes : int
        How many blocks of memory escaped, and their bytes.
    sites : tuple of str
        The lines where they were born, the one with the most bytes first.
    """

    def __init__(self, message: str = "", *, count: int = 0, nbytes: int = 0, sites: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.count = count
        self.nbytes = nbytes
        self.sites = sites


class DeviceMismatchError(DisposeScopeError, RuntimeError):
    """The members of a composite live on different devices.

    Attributes
    ----------
    members, devices : tuple of str
        The names of two members that disagree, and the device of each.
    """

    def __init__(self, message: str = "", *, members: tuple[str, ...] = (), devices: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.members = members
        self.devices = devices


class GraphRetainedError(DisposeScopeError, RuntimeError):
    """A tensor that carries an autograd graph was moved out of a scope opened with ``graph="error"``.

    Attributes
    ----------
    resource : str
        Kind, shape, dtype and name of the tensor.
    nbytes, nodes : int
        The bytes that the graph pins, each storage counted once, and the number of its nodes.
    first_op, last_op : str
        The op that ran first, and the one whose result the tensor is.
    site : str
        The line that made the tensor where that is known (a `LeakDetector` is open, or anomaly mode
        was on), and otherwise the line that moved it out.
    """

    def __init__(
        self,
        message: str = "",
        *,
        resource: str = "",
        nbytes: int = 0,
        nodes: int = 0,
        first_op: str = "",
        last_op: str = "",
        site: str = "",
    ) -> None:
        super().__init__(message)
        self.resource = resource
        self.nbytes = nbytes
        self.nodes = nodes
        self.first_op = first_op
        self.last_op = last_op
        self.site = site


class LeakError(DisposeScopeError, RuntimeError):
    """Tensors were still alive where none should be.

    Attributes
    ----------
    count, nbytes : int
        How many resources leaked, and the bytes of their storages, each storage counted once.
    """

    def __init__(self, message: str = "", *, count: int = 0, nbytes: int = 0) -> None:
        super().__init__(message)
        self.count = count
        self.nbytes = nbytes


class LeakWarning(ResourceWarning):
    """Something outlived its scope and was not moved out of it."""
