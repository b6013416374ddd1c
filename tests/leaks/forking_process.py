"""A process that imports libraries once, and forks for each program under ``leak-report run``.

It reads lines of JSON, ``{"program", "output", "log", "has_timer"}``, and answers each with the
exit status of the program, which runs in its own folder. Without a timer no report is written now
and then. Of disposescope it imports nothing itself, and no function of it is around a program.
"""

import importlib
import json
import os
import sys

for name in sys.argv[1:]:
    importlib.import_module(name)
for line in sys.stdin:
    request = json.loads(line)
    pid = os.fork()
    if pid == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    sys.exit()

status = 70
try:
    file = os.open(request["log"], os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["leak-report", "run", "-q", "-o", request["output"], request["program"]]
    os.chdir(os.path.dirname(request["program"]))
    from disposescope.leaks.commands.parser import main
    from disposescope.leaks.running import session

    if not request["has_timer"]:
        session._INTERVAL_S = 3600.0
    status = main()
except SystemExit as leaving:
    status = leaving.code if type(leaving.code) is int else 1
except BaseException:
    sys.excepthook(*sys.exc_info())
finally:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
