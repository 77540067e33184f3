"""Importing data sets of the Hugging Face hub: conversations and preferences, by their columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.core.rules.chat import chat_messages
from ratchet.extras.importers.base import ImportOptions
from ratchet.extras.importers.hugging_face import HUGGING_FACE
from tests.support.imports import imported, write_lines

USER, GOOD, BAD = (
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "assistant", "content": "No."},
)

SYSTEM = {"role": "system", "content": "Help."}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [USER, GOOD]},
        {"messages": '[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello."}]'},
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "Hello."}]},
        {"prompt": "hi", "completion": "Hello."},
        {"prompt": [USER], "completion": [GOOD]},
        {"prompt": "hi", "response": "Hello.", "messages": None},
        {"instruction": "hi", "input": "", "output": "Hello."},
    ],
)
def test_every_form_of_a_conversation_gives_the_same_chat(tmp_path: Path, row: dict[str, Any]) -> None:
    bus, report = imported(HUGGING_FACE, write_lines(tmp_path / "a.jsonl", row))
    assert report.malformed == []
    assert chat_messages(bus.trajectories[0]) == [USER, GOOD]
    assert bus.trajectories[0].metadata.source == "import:hugging-face"


def test_columns_beside_the_chat_are_read(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "find"}}
    row = {
        "system": "Help.",
        "messages": [USER, GOOD],
        "tools": [{"name": "find"}],
        "task_id": "t7",
        "model": "m",
        "solved": True,
    }
    bus, _ = imported(HUGGING_FACE, write_lines(tmp_path / "a.jsonl", row), ImportOptions(outcome="solved"))
    one = bus.trajectories[0]
    assert (one.task_context.instructions, one.task_context.tools) == ("Help.", [tool])
    assert (one.task_context.task_id, one.metadata.model) == ("t7", "m")
    assert one.outcome is not None
    assert one.outcome.status == "success"


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": "hi", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": [USER], "chosen": "Hello.", "rejected": "No."},
        {"prompt": " hi\n", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
    ],
)
def test_every_form_of_a_pair_gives_the_same_preference(tmp_path: Path, row: dict[str, Any]) -> None:
    bus, report = imported(HUGGING_FACE, write_lines(tmp_path / "a.jsonl", row))
    assert report.malformed == []
    (pair,) = bus.preferences
    assert (pair.prompt, pair.chosen, pair.rejected, pair.source) == ([USER], [GOOD], [BAD], "teacher")


LOOK = {"role": "assistant", "content": "Let me look."}


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"prompt": [USER], "chosen": [LOOK, GOOD], "rejected": [LOOK, BAD]}, [USER, LOOK]),
        ({"prompt": [USER], "chosen": [USER, LOOK, GOOD], "rejected": [USER, LOOK, BAD]}, [USER, LOOK]),
        ({"prompt": [USER, LOOK], "chosen": [LOOK, GOOD], "rejected": [LOOK, BAD]}, [USER, LOOK, LOOK]),
        ({"prompt": "hi", "chosen": [SYSTEM, USER, GOOD], "rejected": [SYSTEM, USER, BAD]}, [SYSTEM, USER]),
        ({"prompt": [SYSTEM, USER], "chosen": [USER, GOOD], "rejected": [USER, BAD]}, [SYSTEM, USER]),
        ({"prompt": [SYSTEM, USER], "chosen": [LOOK, GOOD], "rejected": [LOOK, BAD]}, [SYSTEM, USER, LOOK]),
    ],
)
def test_a_first_step_that_both_answers_share_follows_the_prompt(
    tmp_path: Path, row: dict[str, Any], prompt: list[dict[str, Any]]
) -> None:
    bus, _ = imported(HUGGING_FACE, write_lines(tmp_path / "a.jsonl", row))
    (pair,) = bus.preferences
    assert (pair.prompt, pair.chosen, pair.rejected) == (prompt, [GOOD], [BAD])


def test_an_answer_that_goes_on_after_the_other_ends_keeps_what_they_share(tmp_path: Path) -> None:
    row = {"chosen": [USER, GOOD, USER, BAD], "rejected": [USER, GOOD]}
    bus, _ = imported(HUGGING_FACE, write_lines(tmp_path / "a.jsonl", row))
    (pair,) = bus.preferences
    assert (pair.prompt, pair.chosen, pair.rejected) == ([USER], [GOOD, USER, BAD], [GOOD])


def test_an_outcome_that_is_named_later_is_no_other_trajectory(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"messages": [USER, GOOD], "solved": 1.0})
    plain, _ = imported(HUGGING_FACE, path)
    named, _ = imported(HUGGING_FACE, path, ImportOptions(outcome="solved"))
    assert named.trajectories[0].outcome is not None
    assert plain.trajectories[0].trajectory_id == named.trajectories[0].trajectory_id


def test_pairs_of_texts_stay_texts(tmp_path: Path) -> None:
    bus, _ = imported(
        HUGGING_FACE, write_lines(tmp_path / "a.jsonl", {"prompt": "hi", "chosen": "Hello.", "rejected": "No."})
    )
    assert (bus.preferences[0].prompt, bus.preferences[0].chosen) == ("hi", "Hello.")


def test_a_folder_of_parquet_files_is_imported_and_bad_rows_are_named(tmp_path: Path) -> None:
    rows = [{"messages": [USER, GOOD]}, {"messages": None}, {"messages": [USER]}]
    (tmp_path / "set" / "data").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "set" / "data" / "train-0.parquet")
    bus, report = imported(HUGGING_FACE, tmp_path / "set")

    assert len(bus.trajectories) == 1
    assert [(one.where, one.reason) for one in report.malformed] == [
        ("data/train-0.parquet row 1", "has no conversation: its columns are messages"),
        ("data/train-0.parquet row 2", "holds no message of the assistant"),
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"chosen": [USER, GOOD], "rejected": [USER, GOOD]}, "are the same"),
        ({"chosen": [GOOD], "rejected": [BAD]}, "share no message"),
        ({"prompt": "hi", "chosen": "", "rejected": "No."}, "empty chosen"),
        ({"prompt": "hi", "chosen": 7, "rejected": 8}, "not an object"),
        ({"text": "hi"}, "its columns are text"),
        (7, "is not an object"),
    ],
)
def test_rows_that_hold_nothing_say_why(tmp_path: Path, row: object, reason: str) -> None:
    bus, report = imported(HUGGING_FACE, write_lines(tmp_path / "a.jsonl", row, {"messages": [USER, GOOD]}))
    assert (len(bus.messages), len(report.malformed)) == (1, 1)
    assert reason in report.malformed[0].reason
