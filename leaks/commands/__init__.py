"""The command ``leak-report``: run a program and report what it leaked. One file for each verb."""

from .parser import main

__all__ = ["main"]
