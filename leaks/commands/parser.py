"""The parser over all verbs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final, Protocol

from .attach import Attach
from .check import Check
from .diff import Diff
from .export import Export
from .html import Html
from .merge import Merge
from .run import Run
from .show import Show

__all__ = [
    "Verb",
    "main",
]

_EPILOG: Final = """\
exit status:
  the program's own    run: what the program ended with
  0                    the others: done, and nothing was found that should not be
  3                    run --fail-on: the program succeeded, and leaked; check: there are leaks that are not known
  2                    usage: an unknown option or file, a file that is no report, an output that exists
"""


class Verb(Protocol):
    """One verb of the command line. The docstring of its class is its help."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Say what it takes."""

    def run(self, options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Do it; returns the exit status."""
        ...


VERBS: Final[dict[str, type[Verb]]] = {
    "run": Run,
    "show": Show,
    "check": Check,
    "attach": Attach,
    "html": Html,
    "diff": Diff,
    "merge": Merge,
    "export": Export,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments, ``sys.argv[1:]`` where left out.
    """
    parser = argparse.ArgumentParser(
        prog="leak-report",
        description="Tell which lines of a program made tensors that outlived their use, and what holds them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    parsers: dict[str, tuple[Verb, argparse.ArgumentParser]] = {}
    for name, cls in VERBS.items():
        text = _undented(cls.__doc__ or "")
        verb_parser = verbs.add_parser(
            name,
            help=text.partition("\n")[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        verb = cls()
        verb.add_arguments(verb_parser)
        parsers[name] = verb, verb_parser
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] not in VERBS and os.path.isfile(words[0]):
        # The name of a report alone.
        words.insert(0, "show")
    options = parser.parse_args(words)
    verb, verb_parser = parsers[options.verb]
    return verb.run(options, verb_parser)


def _undented(docstring: str) -> str:
    return "\n".join(line.strip() for line in docstring.strip().splitlines())
