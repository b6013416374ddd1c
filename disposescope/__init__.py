"""Block-structured lives for tensors: what is born in a scope is released at its end."""

from .scopes import *  # noqa: F403
