"""What an adapter for another library of tensors is made of: see `Framework`, and the how-to page on it."""

from .scopes.context import current_scope
from .scopes.framework import Framework, register
from .scopes.identity import disposed_error
from .scopes.kinds import Kind
from .scopes.ownership import born, born_late, born_together

__all__ = [
    "Framework",
    "Kind",
    "born",
    "born_together",
    "born_late",
    "current_scope",
    "disposed_error",
    "register",
]
