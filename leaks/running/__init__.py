"""Run programs under a detector: by ``leak-report run``, by an environment variable, in pytest.

Read `program`, which runs a program; `session`, which watches one; `inventory`, which keeps what a
program had when its code returned; `children`, by which processes join a session. `pytest_plugin`
and `environment` start a detector without ``leak-report run``.
"""
