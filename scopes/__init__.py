"""Scopes: blocks of code that own what is born in them.

This floor knows no tensor: it knows kinds.
"""
