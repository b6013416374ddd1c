"""``leak-report``: run a program and tell what it leaked. One file for each verb."""

from .main import main

__all__ = ["main"]
