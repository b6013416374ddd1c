"""What an adapter for another tensor library is made of: see `Framework`, and its how-to page."""

from .scopes.base.sites import Role
from .scopes.framework import (
    Belonging,
    BirthLog,
    Escape,
    Framework,
    HeldMemory,
    LibraryCache,
    LiveMemory,
    ModelFacts,
    Part,
    register,
)
from .scopes.functions import current_scope
from .scopes.identity import disposed_error
from .scopes.kinds import Kind
from .scopes.ownership import belongs_to_model, born, born_late, born_together

__all__ = [
    "Belonging",
    "BirthLog",
    "Escape",
    "Framework",
    "HeldMemory",
    "Kind",
    "LibraryCache",
    "LiveMemory",
    "ModelFacts",
    "Part",
    "Role",
    "belongs_to_model",
    "born",
    "born_late",
    "born_together",
    "current_scope",
    "disposed_error",
    "register",
]
