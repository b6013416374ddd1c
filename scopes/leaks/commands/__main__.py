"""``python -m disposescope.scopes.leaks.commands``: the same as ``leak-report``."""

import sys

from ._main import main

sys.exit(main())
