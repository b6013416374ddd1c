"""The face of the identity set: what the other rooms and the leak detector use of it, from the files that own it."""

from ._composites import Plan, absorb_members, gathered, plan_members
from ._deaths import died, track
from ._entry import (
    DEAD,
    LIVE,
    AnchoredEntry,
    Entry,
    StrongEntry,
    anchor_entry_of,
    anchor_of,
    dead_entry_of,
    entry_of,
    is_tracked,
    owner_of_entry,
    standing_of,
    unit_of,
)
from ._estates import ESTATES, SHARED, let_go, settle
from ._parts import arrays_of, device_of_entry, parts_of, storages_of
from ._releases import check_alive, disposed_error, is_released, release, story_of

__all__ = [
    "DEAD",
    "ESTATES",
    "LIVE",
    "SHARED",
    "AnchoredEntry",
    "Entry",
    "Plan",
    "StrongEntry",
    "absorb_members",
    "anchor_entry_of",
    "anchor_of",
    "arrays_of",
    "check_alive",
    "dead_entry_of",
    "device_of_entry",
    "died",
    "disposed_error",
    "entry_of",
    "gathered",
    "is_released",
    "is_tracked",
    "let_go",
    "owner_of_entry",
    "parts_of",
    "plan_members",
    "release",
    "settle",
    "standing_of",
    "storages_of",
    "story_of",
    "track",
    "unit_of",
]
