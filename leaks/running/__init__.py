"""Run programs under a detector: by ``leak-report run``, by an environment variable, in pytest.

Read `program`, `session`; `pytest_plugin` and `environment` are entrances of their own.
"""
