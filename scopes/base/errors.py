"""The errors and warnings of this library.

Each error is also a built-in exception that callers would expect. Its attributes describe the
resource (a repr, a shape, a number of bytes) and never hold the tensor itself: an error that is
kept must not keep memory. Every error is built from one message and can be pickled, because
DataLoader workers send errors to their parent process.
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
    "WorkspaceError",
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
    """A scope was entered twice, or used before it was entered; or no scope is open.

    Attributes
    ----------
    scope : str
        The repr of the scope, empty where no scope is open.
    """

    def __init__(self, message: str = "", *, scope: str = "") -> None:
        super().__init__(message)
        self.scope = scope


class NotOwnedError(DisposeScopeError, RuntimeError):
    """A strict scope was asked to move or detach a resource that it does not own.

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
    """An object of an unregistered type hides a resource, or is no resource itself.

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
    scope : str
        The name of the scope that released it; empty where that has none, and where no scope did.
    site : str
        The line where that scope was entered; empty where no scope did.
    """

    def __init__(self, message: str = "", *, resource: str = "", scope: str = "", site: str = "") -> None:
        super().__init__(message)
        self.resource = resource
        self.scope = scope
        self.site = site


class EscapedError(DisposeScopeError, RuntimeError):
    """What a scope owned was still referenced when it was left.

    Raised by a strict scope for its plain arrays and exported views, which stay valid and belong to
    the outer scope; and by a scope with ``escapes="raise"`` for what was held by more than the
    variables of its block, which has been disposed.

    Attributes
    ----------
    count, nbytes : int
        How many blocks of memory, or resources, escaped, and their bytes.
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
    """A tensor with an autograd graph was moved out of a scope opened with ``graph="error"``.

    Or a graph was recorded in a scope opened with ``graph="refuse"``, or moved out of it.

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
        was on), and otherwise the line that moved it out. With ``graph="refuse"``, the line that
        recorded the graph.
    module : str
        With ``graph="refuse"``, the module whose forward pass recorded it, as the outermost module
        that runs knows it: ``"layers.3.norm"``. Empty for the outermost module itself, and outside
        of modules.
    leaf : str
        With ``graph="refuse"``, the name of the parameter, buffer, attribute or variable that
        requires gradients.
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
        module: str = "",
        leaf: str = "",
    ) -> None:
        super().__init__(message)
        self.resource = resource
        self.nbytes = nbytes
        self.nodes = nodes
        self.first_op = first_op
        self.last_op = last_op
        self.site = site
        self.module = module
        self.leaf = leaf


class WorkspaceError(DisposeScopeError, RuntimeError):
    """A pass of a strict workspace was not as planned, or a verified one found a stray write.

    A stray write changes bytes of the slab that are nobody's.
    """


class LeakError(DisposeScopeError, RuntimeError):
    """Tensors were still alive, or referenced, that should not be.

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
    """A resource outlived its scope and was not moved out of it."""
