"""The reference of leak-report names every verb, option, kind of leak and field."""

import argparse
import json
import re
from pathlib import Path
from typing import get_args

import pytest

from disposescope.leaks import reporters
from disposescope.leaks.commands.parser import VERBS
from disposescope.leaks.report.leaks import LeakKind
from disposescope.leaks.reporters.json_report import schema

PAGE = Path(__file__).parents[2] / "docs" / "leak-report.md"
TEXT = PAGE.read_text(encoding="utf-8")


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_a_verb_is_there_and_no_other(verb: str) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    VERBS[verb]().add_arguments(parser)
    known = {option for action in parser._actions for option in action.option_strings}
    named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", re.sub(r"https?://\S+|`python [^`]*`", "", section(verb))))
    assert known <= named
    assert {option for option in named if option.startswith("--")} <= known


def test_every_kind_of_leak_is_there() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", section("Kinds of leak"), re.MULTILINE)) == set(get_args(LeakKind))


def test_every_field_of_the_json_is_there() -> None:
    named = set(re.findall(r"`(\w+)`", section("The JSON")))
    definitions = schema()["$defs"]
    assert {name for definition in definitions.values() for name in definition["properties"]} <= named


def test_the_toml_is_read(tmp_path: Path) -> None:
    from disposescope.leaks.saved.baseline import read_baseline
    from disposescope.leaks.saved.settings_file import suppressions_of

    file = tmp_path / ".leak-report.toml"
    found = re.search(r"```toml\n(\[\[suppress.*?)```", TEXT, re.DOTALL)
    assert found is not None
    file.write_text(found[1], encoding="utf-8")
    assert len(suppressions_of(file)) == len(read_baseline(file)) == 1


def test_the_schema_in_the_package_is_that_of_the_code() -> None:
    file = Path(reporters.__file__).parents[1] / "report.schema.json"
    assert json.loads(file.read_text(encoding="utf-8")) == schema()
