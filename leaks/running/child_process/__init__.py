"""What a process that a watched program starts finds first on its path: see ``children.py`` beside this folder."""
