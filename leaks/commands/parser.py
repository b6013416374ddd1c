"""The command line of ``leak-report``: the parser of all verbs."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, cast

from ..saved.settings_file import SettingsError, find_settings, options_of
from .arguments import actions_of, near_to, option_names_of
from .attach import Attach
from .check import Check
from .diff import Diff
from .export import Export
from .html import Html
from .merge import Merge
from .run import Run
from .show import Show

__all__ = [
    "main",
]

_SHELLS: Final = ("bash", "zsh", "tcsh")
_FILES: Final = ("FILE", "OUT", "OLD", "NEW", "SCRIPT")
"""The metavars of arguments that a shell completes as files."""
_ELSEWHERE: Final = {
    "doctor": "python -m disposescope doctor",
    "plan": "python -m disposescope plan FILE.csv -o OUT.csv",
    "help": "leak-report --help",
}
"""Words that are no verbs, and the command to use instead."""
_WITH_SETTINGS: Final = ("run", "check")
"""The verbs that take options from a file of settings."""
_EPILOG: Final = """\
exit status:
  the program's own    run: what the program ended with
  0                    the others: done, and nothing was found that should not be
  3                    run --fail-on: the program succeeded, and leaked; check: there are leaks that are not tolerated
  4                    run --fail-on, check, diff: nothing was found, and not everything could be judged; what, and
                       what to do about it, is in the report
  2                    usage: an unknown option or file, a file that is no report, an output that exists
"""


class Verb(Protocol):
    """One verb of the command line. The docstring of its class is its help."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the verb to its parser."""

    def run(self, options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Run the verb and return the exit status."""
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
    """Run the command line and return the exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; by default ``sys.argv[1:]``.
    """
    parser = argparse.ArgumentParser(
        prog="leak-report",
        description="Tell which lines of a program made tensors that outlived their use, and what holds them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    parser.add_argument(
        "--print-completion",
        action=_Completion,
        choices=_SHELLS,
        help="print what completes the command in a shell (needs shtab)",
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
    if words and words[0] not in VERBS and (os.path.isfile(words[0]) or words[0].endswith(".json")):
        if words[0].endswith((".py", ".pyc", ".pyz")):
            parser.error(f"{words[0]!r} is a program; to run it: leak-report run {shlex.join(words)}")
        # The name of a report alone means `show`.
        words.insert(0, "show")
    if not words:
        parser.error(f"name a verb: {', '.join(VERBS)}; leak-report --help says what each does")
    if words[0] in _ELSEWHERE:
        parser.error(f"there is no verb {words[0]!r}; the command is: {_ELSEWHERE[words[0]]}")
    if words[0].startswith("-"):
        _refuse([word for word in words[:1] if word.partition("=")[0] not in option_names_of(parser)], parser)
    elif words[0] not in VERBS:
        parser.error(f"invalid choice: {words[0]!r}{near_to(words[0], VERBS)} (choose from {', '.join(VERBS)})")
    options, unknown = parser.parse_known_args(words)
    verb, verb_parser = parsers[options.verb]
    _refuse(unknown, verb_parser)
    if options.verb in _WITH_SETTINGS:
        given = getattr(options, "config", None)
        file = find_settings(Path.cwd()) if given is None else Path(given)
        try:
            if file is not None and _take_defaults(file, verb_parser, [parsers[name][1] for name in _WITH_SETTINGS]):
                options = parser.parse_args(words)
        except SettingsError as error:
            verb_parser.error(str(error))
    return verb.run(options, verb_parser)


def _refuse(unknown: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """End the program if there are arguments that a verb does not have."""
    if unknown:
        near = near_to(unknown[0].partition("=")[0], option_names_of(parser))
        parser.error(f"unrecognized arguments: {shlex.join(unknown)}{near}")


class _Version(argparse.Action):
    """Prints the version, which is looked up only here because that imports the package."""

    def __call__(self, parser: argparse.ArgumentParser, *_given: object) -> NoReturn:
        print(f"leak-report {import_module('disposescope').__version__} (disposescope)")
        parser.exit()


class _Completion(argparse.Action):
    """Prints the code by which a shell completes the command."""

    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: object, shell: object, _option: object = None
    ) -> NoReturn:
        if find_spec("shtab") is None:
            parser.error("--print-completion needs shtab: pip install 'disposescope[report]'")
        shtab: Any = import_module("shtab")
        [verbs] = (action for action in actions_of(parser) if action.dest == "verb")
        for verb_parser in cast("dict[str, argparse.ArgumentParser]", verbs.choices).values():
            for action in actions_of(verb_parser):
                if action.metavar in _FILES:
                    cast("Any", action).complete = shtab.FILE
        print(shtab.complete(parser, shell))
        parser.exit()


def _take_defaults(file: Path, parser: argparse.ArgumentParser, parsers: Sequence[argparse.ArgumentParser]) -> bool:
    """Set the options in a file of settings as defaults of a verb; return whether it has any.

    Parameters
    ----------
    file : Path
        The file.
    parser : argparse.ArgumentParser
        The parser of the verb.
    parsers : sequence of argparse.ArgumentParser
        The parsers of all verbs that read the file: it may have options of each.
    """
    known = {name for each in parsers for name in _settable_options(each)}
    options = options_of(file, known)
    actions = _settable_options(parser)
    for name, value in options.items():
        if name in actions:
            parser.set_defaults(**{actions[name].dest: _default(f"{str(file)!r}: {name}", actions[name], value)})
    return bool(options)


def _settable_options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the options that a file of settings may have, by their long names without dashes."""
    return {
        name.removeprefix("--"): action
        for action in actions_of(parser)
        for name in action.option_strings
        if name.startswith("--") and name not in ("--help", "--config", "--force", "--update-baseline")
    }


def _default(where: str, action: argparse.Action, value: object) -> object:
    """Return the value of an option as if it were given on the command line.

    `where` is the text of its place for messages.
    """
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise SettingsError(f"{where} must be true or false, not {value!r}")
        return value
    words = cast("list[object]", value) if isinstance(value, list) else [value]
    if not words or not all(type(word) in (str, int, float) for word in words):
        raise SettingsError(f"{where} must be a text, a number or a list of texts, not {value!r}")
    text = ",".join(map(str, words))
    try:
        return action.type(text) if callable(action.type) else text
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise SettingsError(f"{where}: {error}") from None


def _undented(docstring: str) -> str:
    return "\n".join(line.strip() for line in docstring.strip().splitlines())
