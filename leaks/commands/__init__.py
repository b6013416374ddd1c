"""``leak-report``: run a program and tell what it leaked. One file for each verb."""

from .parser import main

__all__ = ["main"]
