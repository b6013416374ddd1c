"""Promises of device names: one spelling for each device."""

from __future__ import annotations

import pytest

from disposescope.scopes import kinds
from disposescope.scopes.kinds import device_name


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("cpu", "cpu:0"),
        ("CPU", "cpu:0"),
        (" cpu ", "cpu:0"),
        ("cpu:0", "cpu:0"),
        ("cuda:1", "cuda:1"),
        ("cuda:01", "cuda:1"),
        ("meta", "meta:0"),
        ("mps", "mps:0"),
    ],
)
def test_spellings(given, name):
    assert device_name(given) == name
    assert device_name(name) == name


def test_objects_with_a_name_as_their_str():
    class Device:
        def __str__(self):
            return "cuda:2"

    assert device_name(Device()) == "cuda:2"


def test_without_a_number_it_is_the_current_one(monkeypatch):
    monkeypatch.setitem(kinds._current_index, "cuda", lambda: 3)
    assert device_name("cuda") == "cuda:3"
    assert device_name("cuda:0") == "cuda:0"
    assert device_name("cpu") == "cpu:0"


@pytest.mark.parametrize("wrong", ["", ":", ":1", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2"])
def test_what_is_no_name_is_refused_and_shown(wrong):
    with pytest.raises(ValueError, match="not a device name") as caught:
        device_name(wrong)
    assert repr(wrong) in str(caught.value)
