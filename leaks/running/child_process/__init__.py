"""The folder that is first on the path of child processes: see ``../children.py``."""
