"""A snapshot leaves as records that `datasets` and TRL read, in splits that share no prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from datasets import load_dataset
from trl import is_conversational

from ratchet.cli.dataset import write_records
from ratchet.core.contract.snapshot import ChatPart, Row
from ratchet.core.datasets.domain.trl import Split
from ratchet.core.errors import Rejected
from tests.support.snapshot_rows import label_row, pair_row, trajectory_row

SYSTEM = {"role": "system", "content": "Help."}
TOOLS = [{"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}]


def asked(number: int) -> list[dict[str, Any]]:
    return [SYSTEM, {"role": "user", "content": f"question {number}"}]


def reply(text: str) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": text}]


CHAT = [*asked(1), *reply("a"), {"role": "user", "content": "and?"}, *reply("b")]
CALLING = [
    *asked(2),
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "found"},
    *reply("done"),
]
ROWS: dict[str, list[Row]] = {
    "messages": [trajectory_row(1, messages=CHAT, tools=TOOLS), trajectory_row(2, messages=CALLING)],
    "prompt_completion": [trajectory_row(1, messages=CHAT)],
    "preference": [pair_row(prompt=asked(1), chosen=reply("good"), rejected=reply("bad"))],
    "unpaired": [label_row(prompt=asked(1), completion=reply("fine"), label=True)],
}
COLUMNS = {
    "messages": {"messages", "tools"},
    "prompt_completion": {"prompt", "completion"},
    "preference": {"prompt", "chosen", "rejected"},
    "unpaired": {"prompt", "completion", "label"},
}


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(member) for name, member in value.items() if member is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def read_back(file: Path, cache: Path) -> Any:
    kind = "json" if file.suffix == ".jsonl" else "parquet"
    return load_dataset(kind, data_files=str(file), split="train", cache_dir=str(cache))


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("form", ROWS)
def test_records_are_read_by_datasets_as_conversations_of_trl(form: str, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"records{suffix}"
    (count,) = write_records(ROWS[form], form, Split(), file).values()
    read = read_back(file, tmp_path / "cache")
    assert (set(read.column_names) | {"tools"}, len(read)) == (COLUMNS[form] | {"tools"}, count)
    assert is_conversational(read[0])


def test_parquet_holds_the_records_of_json_lines(tmp_path: Path) -> None:
    rows = [trajectory_row(n, messages=CALLING if n % 2 else CHAT, tools=TOOLS) for n in range(600)]
    write_records(rows, "messages", Split(), tmp_path / "r.jsonl")
    write_records(rows, "messages", Split(), tmp_path / "r.parquet")
    stored = [without_nulls(one) for one in pq.read_table(tmp_path / "r.parquet").to_pylist()]
    assert stored == [without_nulls(one) for one in lines(tmp_path / "r.jsonl")]


def test_splits_in_parquet_share_no_prompt_and_are_read_as_splits(tmp_path: Path) -> None:
    rows = [pair_row(n, prompt=asked(n % 20), chosen=reply(str(n)), rejected=reply("bad")) for n in range(60)]
    write_records(rows, "preference", Split(0.3, 0.2, seed=7), tmp_path / "r.parquet")
    files = {name: str(tmp_path / f"r.{name}.parquet") for name in ("train", "eval", "test")}
    read: Any = load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))
    prompts = [{json.dumps(prompt) for prompt in read[name]["prompt"]} for name in files]
    assert sum(map(len, prompts)) == len(set.union(*prompts)) == 20
    assert all(prompts)


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "content that is no text"),
        ({"role": "user", "content": "a", "audio": {"id": "1"}}, "a message has audio"),
    ],
)
def test_what_parquet_has_no_place_for_is_refused_not_dropped(
    message: dict[str, Any], refusal: str, tmp_path: Path
) -> None:
    rows = [trajectory_row(messages=[message, *reply("b")])]
    with pytest.raises(Rejected, match=refusal):
        write_records(rows, "messages", Split(), tmp_path / "r.parquet")
    assert list(tmp_path.iterdir()) == []
    write_records(rows, "messages", Split(), tmp_path / "r.jsonl")


def test_every_answer_is_a_completion_of_what_came_before(tmp_path: Path) -> None:
    compacted = trajectory_row(messages=CHAT, learn_from=3, earlier=[ChatPart(messages=CHAT[:3], learn_from=0)])
    write_records([compacted, trajectory_row(messages=asked(1))], "prompt_completion", Split(), tmp_path / "r.jsonl")
    assert lines(tmp_path / "r.jsonl") == [
        {"prompt": CHAT[:2], "completion": reply("a")},
        {"prompt": CHAT[:4], "completion": reply("b")},
    ]


def test_splits_share_no_prompt_and_follow_from_the_seed(tmp_path: Path) -> None:
    rows = [pair_row(n, prompt=asked(n % 100), chosen=reply(str(n)), rejected=reply("bad")) for n in range(300)]
    written = write_records(rows, "preference", Split(0.2, 0.1, seed=7), tmp_path / "r.jsonl")
    files = [tmp_path / f"r.{name}.jsonl" for name in ("train", "eval", "test")]
    assert list(written) == [str(file) for file in files]
    prompts = [{json.dumps(record["prompt"]) for record in lines(file)} for file in files]
    assert sum(written.values()) == 300
    assert sum(map(len, prompts)) == len(set.union(*prompts)) == 100
    assert 10 <= len(prompts[1]) <= 30
    assert 4 <= len(prompts[2]) <= 20
    again = tmp_path / "again.jsonl"
    write_records(reversed(rows), "preference", Split(0.2, 0.1, seed=7), again)
    assert {json.dumps(one["prompt"]) for one in lines(tmp_path / "again.eval.jsonl")} == prompts[1]
    write_records(rows, "preference", Split(0.2, 0.1, seed=8), again)
    assert {json.dumps(one["prompt"]) for one in lines(tmp_path / "again.eval.jsonl")} != prompts[1]


def test_rows_that_do_not_fit_are_refused_and_no_file_is_left(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="cannot be written as messages; they can be as preference"):
        write_records(ROWS["preference"], "messages", Split(0.5), tmp_path / "r.jsonl")
    assert list(tmp_path.iterdir()) == []
