"""``python -m disposescope.leaks.commands``: the same as ``leak-report``."""

from __future__ import annotations

import sys

from .parser import main

sys.exit(main())
