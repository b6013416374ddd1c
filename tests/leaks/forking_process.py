"""A process that imports libraries once, and forks for each program under ``leak-report run``.

It reads lines of JSON, ``{"program", "output", "log"}``, and answers each with the exit status of
the program. Of disposescope it imports nothing itself.
"""

import importlib
import json
import os
import sys


def run(program: str, output: str, log: str) -> int:
    """Return the exit status of a program that is run in a child."""
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
            os.dup2(file, 1)
            os.dup2(file, 2)
            sys.argv = ["leak-report", "run", "-q", "-o", output, program]
            from disposescope.leaks.commands.parser import main

            status = main()
        except SystemExit as leaving:
            status = leaving.code if type(leaving.code) is int else 1
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        print(run(**json.loads(line)), flush=True)
