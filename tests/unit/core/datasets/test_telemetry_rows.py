"""What public senders sent as telemetry trains what needs texts alone, and nothing that needs token ids."""

from __future__ import annotations

import pytest

from ratchet.core.contract.snapshot import LabelRow, TrajectoryRow
from ratchet.core.datasets.domain.labels import label_row
from ratchet.core.datasets.domain.rows import NO_TRAINABLE_CALL, Scored, SnapshotRow, row_of
from tests.support.telemetry import folded, received, sent

SCORED = Scored(task_key="task", reward=1.0, raw_reward=1.0, baseline=None)


@pytest.mark.parametrize("sender", ["conventions_in_spans", "pydantic_ai_logfire"])
def test_telemetry_makes_rows_of_texts_and_none_of_token_ids(sender: str) -> None:
    run = folded(received(sent(sender)))
    main = run.assembled.trajectories[0]
    made = row_of(main, run.turns, SCORED, needs_calls=False)
    assert isinstance(made, SnapshotRow)
    assert isinstance(made.row, TrajectoryRow)
    assert (made.origin.source, made.row.messages[-1]["role"]) == ("telemetry", "assistant")
    liked = label_row(main, run.turns, label=True)
    assert isinstance(liked, SnapshotRow)
    assert isinstance(liked.row, LabelRow)
    assert liked.row.completion[-1]["role"] == "assistant"
    assert row_of(main, run.turns, SCORED, needs_calls=True) == NO_TRAINABLE_CALL
