"""What processes of a watched program find first on their path: see ``../children.py``."""
