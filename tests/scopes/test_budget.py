"""A budget as people write it."""

from __future__ import annotations

from typing import Any

import pytest

from disposescope.scopes.base.process import parse_budget


@pytest.mark.parametrize(
    ("written", "nbytes"),
    [
        (1, 1),
        ("1", 1),
        ("512MiB", 512 << 20),
        ("512 mib", 512 << 20),
        ("2GB", 2_000_000_000),
        ("1.5 kB", 1500),
        ("64k", 64_000),
        ("0.5KiB", 512),
        (" 3 TiB ", 3 << 40),
    ],
)
def test_a_number_with_or_without_a_unit_is_understood(written: Any, nbytes: int) -> None:
    assert parse_budget(written) == nbytes


@pytest.mark.parametrize("written", ["", "MiB", "-1", "12 XB", "1e9", "1 MiB MiB", 0, -5, "0"])
def test_anything_else_is_a_value_error_that_shows_it(written: Any) -> None:
    with pytest.raises(ValueError, match="budget"):
        parse_budget(written)


@pytest.mark.parametrize("written", [1.5, True, None, b"1"])
def test_other_types_are_a_type_error(written: Any) -> None:
    with pytest.raises(TypeError, match="budget must be"):
        parse_budget(written)
