"""Thumbs become labels: which label counts, and what a row holds."""

from __future__ import annotations

import msgspec

from ratchet.core.contract.snapshot import LabelRow
from ratchet.core.contract.training import DatasetFilter
from ratchet.core.datasets.domain.labels import Thumb, counted, label_row, labels
from ratchet.core.datasets.domain.rows import SnapshotRow
from tests.support.training import conversation, trajectory


def test_the_last_thumb_of_each_rater_and_the_majority_of_raters_count() -> None:
    by_trajectory = labels(
        [
            Thumb("changed", False, "one"),
            Thumb("changed", True, "one"),
            Thumb("majority", True, "one"),
            Thumb("majority", False, "two"),
            Thumb("majority", False, "three"),
            Thumb("tie", True, "one"),
            Thumb("tie", False, "two"),
            Thumb("nameless", True, None),
            Thumb("nameless", False, None),
            Thumb("nameless", True, None),
        ]
    )
    assert by_trajectory == {"changed": True, "majority": False, "tie": None, "nameless": True}


def test_thumbs_of_a_rater_that_is_left_out_count_for_nothing() -> None:
    thumbs = [Thumb("t", False, "ann"), Thumb("t", False, "bob"), Thumb("t", True, "cid"), Thumb("t", True, None)]
    kept = counted(thumbs, DatasetFilter(excluded_raters=["ann", "thumbs/bob"]))
    assert labels(kept) == {"t": True}


def test_a_thumb_judges_everything_after_the_first_prompt() -> None:
    turns, _ = conversation("t", [3, 2])
    made = label_row(trajectory("t", turns=turns), turns, label=False)
    assert isinstance(made, SnapshotRow)
    row = made.row
    assert isinstance(row, LabelRow)
    assert row.prompt == [{"role": "user", "content": "question 0"}]
    assert [message["content"] for message in row.completion] == ["answer 0", "question 1", "answer 1"]
    assert (row.label, row.source, made.origin.trajectories) == (False, "thumbs", ("t",))


def test_a_trajectory_whose_turns_are_not_stored_yet_has_no_row() -> None:
    turns, _ = conversation("t", [3, 2])
    assert label_row(trajectory("t", turns=turns), turns[:1], label=True) == "turns_not_stored"


def test_a_call_that_was_pinned_bars_its_whole_trajectory() -> None:
    turns, _ = conversation("t", [3, 2])
    pinned = msgspec.structs.replace(turns[0], policy=msgspec.structs.replace(turns[0].policy, arm="pinned"))
    assert label_row(trajectory("t"), [pinned, turns[1]], label=True) == "mixed_or_pinned"
