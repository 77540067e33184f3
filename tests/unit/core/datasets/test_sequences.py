"""Calls become sequences in which each token stands once, and come back as they were."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from ratchet.core.contract.snapshot import Call, CallSpan, TokenSequence, TrajectoryRow
from ratchet.core.contract.turn import Constraint
from ratchet.core.datasets.domain.sequences import (
    LEAST_SHARED,
    digest_of,
    ids_of,
    packed,
    scored_spans,
    sequences_of,
    unpacked,
)
from ratchet.core.errors import Rejected
from ratchet.core.rules.recorded import ids_digest
from tests.support.contract_files import example
from tests.support.snapshot_rows import call, trajectory_row


def contents(row: TrajectoryRow) -> list[list[int]]:
    """The tokens of every sequence."""
    return [[token for part in parts for token in part.tolist()] for parts in sequences_of(row)]


def stored(row: TrajectoryRow) -> int:
    return len(row.token_ids)


def test_a_conversation_of_many_calls_stores_each_token_once() -> None:
    calls: list[Call] = []
    history: list[int] = []
    for number in range(30):
        prompt = [*history, *range(1000 * number, 1000 * number + 20)]
        calls.append(call(prompt, [7, 8], [-0.5, -0.25]))
        history = [*prompt, 7, 8]
    row = trajectory_row(calls=calls)
    assert contents(row) == [history]
    assert stored(row) == len(history)
    assert row.calls == []


def test_a_history_that_is_rendered_again_stores_only_what_differs() -> None:
    head = list(range(LEAST_SHARED + 4))
    row = trajectory_row(calls=[call(head, [50, 51], [-1, -1]), call([*head, 51, 60], [61], [-1])])
    assert [(one.parent, one.shared, one.size) for one in row.sequences] == [
        (None, 0, len(head) + 2),
        (0, len(head), 3),
    ]
    assert contents(row) == [[*head, 50, 51], [*head, 51, 60, 61]]


def test_a_retry_that_was_thrown_away_is_kept_apart() -> None:
    row = trajectory_row(calls=[call([1], [2], [-1]), call([1], [3], [-1]), call([1, 3, 4], [5], [-1])])
    assert [span.dropped for span in row.spans] == [True, False, False]
    assert contents(row) == [[1, 3, 4, 5], [1, 2]]


@pytest.mark.parametrize("name", ["full", "minimal", "compact"])
def test_the_forms_of_a_row_say_the_same(name: str) -> None:
    row = msgspec.convert(example("trajectory.row.v1", name), TrajectoryRow)
    compact = msgspec.structs.replace(row, calls=[])
    assert unpacked(compact).calls == row.calls or not row.calls
    again = packed(unpacked(compact))
    assert unpacked(again) == unpacked(compact)


PIECES = st.lists(st.integers(0, 2), max_size=LEAST_SHARED + 2)
ANSWERS = st.lists(st.integers(0, 2), max_size=3)
MOVES = st.sampled_from(["grow", "cut", "again", "other", "unknown"])


@given(st.lists(st.tuples(MOVES, PIECES, ANSWERS, st.booleans()), max_size=8))
def test_every_call_comes_back_whatever_was_logged(steps: list[tuple[str, list[int], list[int], bool]]) -> None:
    calls: list[Call] = []
    history: list[int] = []
    for number, (move, piece, answer, trainable) in enumerate(steps):
        kept = {"grow": history, "cut": history[: len(history) // 2], "again": history}.get(move, [])
        prompt = [] if move == "unknown" else [9, *kept, *([] if move == "again" else piece)]
        output = answer if prompt else []
        facts: dict[str, Any] = {"turn_id": f"c{number}", "trainable": trainable, "policy_version": number}
        if number % 3 == 0:
            facts |= {"constraint": Constraint(kind="regex", specification="a", member="x"), "temperature": 0.5}
        calls.append(call(prompt, output, [-0.5 * (n + 1) for n in range(len(output))], **facts))
        history = [*prompt[1:], *output]
    row = trajectory_row(calls=calls)
    assert unpacked(row).calls == calls
    assert stored(row) <= sum(len(one.prompt_token_ids) + len(one.output_token_ids) for one in calls)
    assert len(row.logprobs) == sum(len(logprobs) for _, logprobs in scored_spans(row))


def test_a_digest_is_that_of_the_gateway() -> None:
    assert digest_of(ids_of([1, 2**31 - 1])) == ids_digest([1, 2**31 - 1])


SPAN = CallSpan(turn_id="c", sequence=0, begin=1, size=1, scored=True, temperature=1.0, trainable=True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"token_ids": [1]}, "sequence 0 lacks tokens"),
        ({"sequences": [TokenSequence(size=2, parent=0)]}, "sequence 0 begins like sequence 0"),
        ({"sequences": [TokenSequence(size=2), TokenSequence(size=0, parent=0, shared=3)]}, "sequence 1 lacks tokens"),
        ({"sequences": [TokenSequence(size=2), TokenSequence(size=0, shared=1)]}, "sequence 1 lacks tokens"),
        ({"spans": [msgspec.structs.replace(SPAN, sequence=1)]}, "call c is of sequence 1"),
        ({"spans": [msgspec.structs.replace(SPAN, begin=2)]}, "call c ends after its sequence"),
        ({"spans": [msgspec.structs.replace(SPAN, begin=-1)]}, "call c ends after its sequence"),
        ({"spans": [msgspec.structs.replace(SPAN, sequence=None)]}, "call c ends after its sequence"),
        ({"logprobs": []}, "call c lacks log-probabilities"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(changes: dict[str, Any], why: str) -> None:
    sound: dict[str, Any] = {
        "token_ids": [1, 2],
        "logprobs": [-0.5],
        "sequences": [TokenSequence(size=2)],
        "spans": [SPAN],
    }
    assert len(unpacked(trajectory_row(**sound)).calls) == 1
    with pytest.raises(Rejected, match=why):
        unpacked(trajectory_row(**{**sound, **changes}))


def test_arrays_and_lists_are_the_same_row() -> None:
    lists = trajectory_row(calls=[call([1, 2], [3], [-0.5])])
    numbers: Any = {"token_ids": np.array([1, 2, 3], np.int32), "logprobs": np.array([-0.5], np.float32)}
    assert unpacked(msgspec.structs.replace(lists, **numbers)) == unpacked(lists)
