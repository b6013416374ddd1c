"""``python -m disposescope``: ``doctor`` lists changes in other code, and ``plan`` plans memory.

The rest is ``leak-report``.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

__all__ = ["main"]

_LIBRARIES = ("python", "numpy", "torch", "jax")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say in one line what is wrong, and end with status 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; return the status to exit with."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    from .leaks.commands.parser import VERBS
    from .leaks.commands.parser import main as leak_report

    if words[:1] == ["--version"] or (words and words[0] in VERBS):
        return leak_report(words)
    parser = _Parser(
        prog="python -m disposescope",
        description="Block-structured lives for tensors.",
        epilog=f"{', '.join(VERBS)}: the same as `leak-report VERB`; `leak-report --help` tells more.",
    )
    commands = parser.add_subparsers(metavar="COMMAND")
    commands.add_parser(
        "doctor",
        help="list what is changed in Python, NumPy, PyTorch and JAX, and whether it fits the installed versions",
        description="List what disposescope changes in Python, NumPy, PyTorch and JAX, why, what is checked before, "
        "and the versions that are found and tested. Ends with status 1 where a check fails or something is not "
        "watched.",
    )
    planning = commands.add_parser(
        "plan",
        help="plan where in one slab buffers lie whose lives are known",
        description="Plan where in one slab buffers lie, so that none overlap that live at the same time and the slab "
        "is as small as can be.",
        epilog="A file of buffers has the columns id,lower,upper,size: a buffer lives from lower up to upper, which is "
        "outside, and needs size bytes. The plan has a column offset more.",
    )
    planning.add_argument("file", metavar="FILE.csv", type=Path, help="the buffers")
    planning.add_argument(
        "-o",
        "--output",
        metavar="OUT.csv",
        type=Path,
        help="where to write the plan; without it only its height is printed",
    )
    planning.add_argument(
        "--time-limit",
        metavar="S",
        type=_seconds,
        default=1.0,
        help="for how many seconds to look for lower plans (default: 1)",
    )
    from .leaks.commands.arguments import near_to, reader_may_leave

    known = [*commands.choices, *VERBS]
    if words and not words[0].startswith("-") and words[0] not in known:
        parser.error(f"invalid choice: {words[0]!r}{near_to(words[0], known)} (choose from {', '.join(known)})")
    given = parser.parse_args(words)
    if not words:
        parser.print_help()
        return 0
    if words[0] == "doctor":
        status = 0
        with reader_may_leave(parser.prog):
            status = doctor()
        return status
    return plan_file(given.file, given.output, given.time_limit)


def plan_file(file: Path, output: Path | None, time_limit: float) -> int:
    """Plan the buffers of a file; return 0, or 2 where a file cannot be read or written."""
    from .planner.plan import plan
    from .planner.table import TableError, read_table, write_table

    try:
        table = read_table(file)
        found = plan(table.buffers, time_limit=time_limit)
        if output is not None:
            write_table(output, table, found)
    except TableError as error:
        return _refuse(str(error))
    except ValueError as error:
        return _refuse(f"{file}: {str(error).removeprefix('plan: ')}")
    except OSError as error:
        return _refuse(f"{error.filename or output}: {error.strerror}")
    except KeyboardInterrupt:
        return _refuse("interrupted; nothing was written")
    best = "no plan is lower" if found.is_optimal else f"{found.ratio:.4f} times the lower bound {found.lower_bound:,}"
    count = len(table.ids)
    print(f"{count:,} {'buffer' if count == 1 else 'buffers'} in {found.height:,} bytes: {best}")
    return 0


def _refuse(text: str) -> int:
    print(f"python -m disposescope plan: error: {text}", file=sys.stderr)
    return 2


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of seconds, 0 or more, not {text!r}")
    return seconds


def doctor() -> int:
    """Print the table of patches; return 0 if all guards hold and all is watched, otherwise 1."""
    missing = _import_libraries()
    from .leaks.detector.detector import LeakDetector
    from .scopes.base.process import PATCHES, version_of
    from .scopes.scope import dispose_scope

    # What declares patches and is imported by nothing above.
    import_module(".leaks.running.session", __package__)
    import_module(".leaks.running.environment", __package__)
    import_module(".leaks.running.program", __package__)
    with warnings.catch_warnings():
        # What they say is in the table.
        warnings.simplefilter("ignore", RuntimeWarning)
        with LeakDetector(), dispose_scope():
            pass
        if "torch" not in missing:
            # Its guard is asked when a graph is looked at. Where PyTorch has too little for that,
            # another row says so.
            with suppress(AttributeError, ImportError):
                from .tensors.torch.graphs.walk import check_graphs

                check_graphs()
    rows = sorted(PATCHES.rows(), key=lambda row: _LIBRARIES.index(row.patch.library))
    tested: dict[str, str] = {}
    for row in rows:
        tested.setdefault(row.patch.library, row.patch.tested)
    # What makes the compiled parts load that nothing above needs.
    import_module(".planner.plan", __package__)
    import_module(".sequences.rows", __package__)
    ours = import_module(".", __package__).__version__
    print(f"disposescope {ours} (compiled: {', '.join(_compiled_parts())})")
    system = " ".join(each for each in (platform.system(), platform.machine(), *platform.libc_ver()) if each)
    cuda = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
    print(f"{system}, {f'PyTorch is built for CUDA {cuda}' if cuda else 'no PyTorch for CUDA'}")
    for library, versions in tested.items():
        version = missing.get(library) or version_of(library)
        newer = ", newer than what was tested" if _is_newer(version, versions) else ""
        print(f"{library} {version} (tested: {versions}{newer})")
    failed = [row for row in rows if row.failures]
    for row in rows:
        patch = row.patch
        state = "GUARD FAILS" if row.failures else "in place" if row.is_installed else "fits, nothing needs it now"
        print(f"\n{patch.library}: {patch.name}\n    state      {state}")
        for found in row.failures:
            print(f"    found      {found}")
        print(f"    why        {patch.why}\n    guard      {patch.guard}\n    otherwise  {patch.otherwise}")
        if patch.uses:
            print(f"    uses       {', '.join(patch.uses)}")
    print()
    unwatched = PATCHES.unwatched_since({})
    for text in unwatched:
        print(f"not watched: {text}")
    for row in failed:
        print(f"guard fails: {row.patch.name}: {row.patch.otherwise}")
    fits = not (failed or unwatched)
    if fits:
        print("all guards hold")
    return 0 if fits else 1


def _compiled_parts() -> list[str]:
    """Return the names of the compiled modules that are loaded."""
    start, end = f"{__package__}.", ".compiled"
    return sorted(
        name.removeprefix(start).removesuffix(end)
        for name in sys.modules
        if name.startswith(start) and name.endswith(end)
    )


def _is_newer(version: str, tested: str) -> bool:
    """Return whether a version, ``"2.15.0+cpu"``, is above a range, ``"2.5 to 2.14"``."""
    bound = [int(part) for part in tested.rpartition(" ")[2].split(".")]
    numbers = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])[: len(bound)]]
    return len(numbers) == len(bound) and numbers > bound


def _import_libraries() -> dict[str, str]:
    """Import what is installed; return what to say of each library that cannot be imported."""
    missing: dict[str, str] = {}
    for library in _LIBRARIES[1:]:
        try:
            import_module(library)
        except ModuleNotFoundError as error:
            missing[library] = "not installed" if error.name == library else f"cannot be imported: {error}"
        except Exception as error:
            missing[library] = f"cannot be imported: {error}"
    return missing


if __name__ == "__main__":
    sys.exit(main())
