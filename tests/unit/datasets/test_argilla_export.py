"""Argilla's records as preference pairs: what its SDK writes is read, what is dropped counted, no prompt shared."""

from __future__ import annotations

import json
import random
import tracemalloc
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from datasets import Dataset
from hypothesis import given, strategies as st
from typer.testing import CliRunner

from ratchet.cli.data import app
from ratchet.datasets.argilla.reading import records_in
from ratchet.datasets.argilla.records import Unusable, pair_of
from ratchet.errors import Rejected
from tests.support.contract_files import ALL_SCHEMAS

JUDGES = [uuid.UUID(int=n) for n in range(4)]
SPLITS = ("train", "eval", "test")


def row(number: int, **changes: Any) -> dict[str, Any]:
    return {"prompt": f"Where is my order number {number}?", "chosen": "On its way.", "rejected": "No.", **changes}


def write(file: Path, rows: Sequence[object]) -> Path:
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return file


def export(file: Path, output: Path, *options: str) -> Any:
    """The result of the command, and the report."""
    result = CliRunner().invoke(app, ["argilla-export", "--input", str(file), "--output", str(output), *options])
    report = output / "schema_report.json"
    return result, json.loads(report.read_text()) if report.is_file() else None


def lines(output: Path, split: str) -> list[Any]:
    return [json.loads(line) for line in (output / f"{split}.jsonl").read_text().splitlines()]


def sdk_records() -> list[Any]:
    """Two answers and three judges; one of them only saved a draft, one disagrees."""
    import argilla as rg  # noqa: PLC0415 - it takes seconds

    def judged(number: int, values: Sequence[tuple[object, str]], question: str = "preference") -> Any:
        return rg.Record(
            id=str(number),
            fields={
                "prompt": f"Where is order {number}?",
                "response_a": "Lost.",
                "response_b": f"It is sent, {number}.",
            },
            metadata={"channel": "mail"},
            suggestions=[rg.Suggestion(question, "response_a", score=0.9, agent="model")],
            responses=[
                rg.Response(question, value, user_id=judge, status=state)
                for judge, (value, state) in zip(JUDGES, values, strict=False)
            ],
        )

    yes = ("response_b", "submitted")
    return [
        judged(1, [yes, yes, ("response_a", "submitted")]),
        judged(2, [(["response_b", "response_a"], "submitted")], question="ranking"),
        judged(3, [yes]),
    ]


@pytest.mark.filterwarnings("ignore:Support for class-based")  # of Argilla's own classes
@pytest.mark.parametrize("form", ["to_json", "jsonl", "parquet"])
def test_what_the_sdk_writes_is_read(tmp_path: Path, form: str) -> None:
    from argilla.records._io import GenericIO, JsonIO  # noqa: PLC0415 - it takes seconds

    records, file = sdk_records(), tmp_path / f"records.{'parquet' if form == 'parquet' else 'jsonl'}"
    flat = GenericIO.to_dict(records, flatten=True)
    flat = (
        {name: values for name, values in flat.items() if not name.startswith("ranking")} if form != "to_json" else flat
    )
    writers: dict[str, Callable[[], object]] = {
        "to_json": lambda: JsonIO.to_json(records, file),
        "jsonl": lambda: Dataset.from_dict(flat).to_json(file),
        "parquet": lambda: Dataset.from_dict(flat).to_parquet(file),
    }
    writers[form]()
    chosen = [pair_of(record).chosen[0]["content"] for record in records_in(file) if form == "to_json" or votes(record)]
    assert chosen == [f"It is sent, {number}." for number in ((1, 2, 3) if form == "to_json" else (1, 3))]


def votes(record: Any) -> object:
    return record["preference.responses"]


def test_a_draft_is_no_vote() -> None:
    flat = {"prompt": "Where?", "response_a": "Here.", "response_b": "There."}
    given = {"preference.responses": ["response_a", "response_b", "response_b"]}
    states = {"preference.responses.status": ["submitted", "draft", "discarded"]}
    assert pair_of(flat | given | states).chosen[0]["content"] == "Here."


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (None, "malformed"),
        ([1], "malformed"),
        ({"prompt": "Where?"}, "malformed"),
        (row(1, chosen=5), "malformed"),
        (row(1, prompt=[{"role": "wizard", "content": "x"}]), "malformed"),
        (row(1, chosen=[{"role": "user", "content": "x"}]), "malformed"),
        ({"prompt": "Where?", "response_a": "a", "response_b": "b"}, "unjudged"),
        ({"prompt": "Where?", "response_a": "a", "response_b": "b", "q.responses": ["a", "b"]}, "unjudged"),
        ({"prompt": "Where?", "response_a": "a", "response_b": "b", "q.responses": ["both"]}, "unjudged"),
        (row(1, prompt="  "), "empty"),
        (row(1, rejected=""), "empty"),
        (row(1, chosen="No. ", rejected="No."), "identical"),
    ],
)
def test_a_record_that_makes_no_pair_has_a_reason(record: object, reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        pair_of(record)


@pytest.mark.parametrize("prompt", [None, [{"role": "user", "content": "Where?"}]], ids=["implied", "named"])
def test_conversations_that_begin_with_the_prompt_are_parted(prompt: object) -> None:
    asked = {"role": "user", "content": "Where?"}
    sides = [[asked, {"role": "assistant", "content": text}] for text in ("Here.", "No.")]
    pair = pair_of({"prompt": prompt, "chosen": sides[0], "rejected": sides[1]})
    assert (pair.prompt, pair.chosen, pair.rejected) == ([asked], sides[0][1:], sides[1][1:])


def test_every_dropped_record_is_counted_and_the_rest_is_split(tmp_path: Path) -> None:
    bad = [row(1), row(900, prompt="Hi"), row(901, prompt="word " * 3000), row(902, rejected="On its way."), 7]
    file = write(tmp_path / "in.jsonl", [*(row(n) for n in range(100)), *bad, row(903, chosen=" ")])
    with file.open("a") as more:
        more.write("{broken\n\n")
    result, report = export(file, tmp_path / "out")
    assert (result.exit_code, report["total"], report["valid"]) == (0, 107, 100)
    assert report["valid_ratio"] == 100 / 107
    jsonschema.validate(report, ALL_SCHEMAS["schema.report.v1"])
    assert report["dropped"] == {
        "malformed": 2,
        "unjudged": 0,
        "empty": 1,
        "identical": 1,
        "too_short": 1,
        "too_long": 1,
        "duplicate": 1,
    }
    assert report["splits"] == {"train": 90, "eval": 5, "test": 5}
    assert {name: len(lines(tmp_path / "out", name)) for name in SPLITS} == report["splits"]
    assert lines(tmp_path / "out", "train")[0].keys() == {"prompt", "chosen", "rejected"}
    assert (report["seed"], report["parameters"]["dedup_by"]) == (42, "prompt+chosen+rejected")
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.parametrize(("bad", "code", "warning"), [(4, 0, ""), (8, 0, "95 % should be"), (12, 1, "no-go")])
def test_too_few_valid_records_warn_and_then_fail(tmp_path: Path, bad: int, code: int, warning: str) -> None:
    rows = [row(n, **({"chosen": ""} if n < bad else {})) for n in range(100)]
    result, report = export(write(tmp_path / "in.jsonl", rows), tmp_path / "out")
    assert (result.exit_code, report["valid"]) == (code, 100 - bad)
    assert warning in result.stderr
    assert bool(result.stderr.strip()) == bool(warning)


def test_no_record_at_all_is_no_go(tmp_path: Path) -> None:
    result, report = export(write(tmp_path / "in.jsonl", []), tmp_path / "out")
    assert (result.exit_code, report["total"], report["valid_ratio"]) == (1, 0, 0)


@pytest.mark.parametrize("seed", ["1", "2"])
def test_no_prompt_is_shared_and_the_order_of_records_changes_nothing(tmp_path: Path, seed: str) -> None:
    rows = [row(n % 40, chosen=f"Answer {n}.") for n in range(100)]
    rows[7]["prompt"] = "  Where is   my order number 7?"
    outputs = []
    for name, order in (("one", rows), ("two", random.Random(3).sample(rows, len(rows)))):
        _, report = export(write(tmp_path / f"{name}.jsonl", order), tmp_path / name, "--shuffle-seed", seed)
        outputs.append({split: (tmp_path / name / f"{split}.jsonl").read_bytes() for split in SPLITS})
    assert outputs[0] == outputs[1]
    prompts = [{" ".join(one["prompt"][0]["content"].split()) for one in lines(tmp_path / "one", s)} for s in SPLITS]
    assert sum(map(len, prompts)) == 40
    assert report["splits"]["eval"] <= 5
    assert report["splits"]["test"] <= 5
    assert min(report["splits"].values()) > 0


def test_another_seed_draws_other_splits(tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl", [row(n) for n in range(60)])
    for seed in ("1", "2"):
        export(file, tmp_path / seed, "--shuffle-seed", seed)
    assert lines(tmp_path / "1", "test") != lines(tmp_path / "2", "test")


def test_records_are_equal_by_what_is_asked_for(tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl", [row(1), row(1, chosen="Another."), row(2)])
    _, report = export(file, tmp_path / "out", "--dedup-by", "prompt")
    assert (report["valid"], report["dropped"]["duplicate"]) == (2, 1)


def test_anonymous_rows_hold_no_address_and_may_become_equal(tmp_path: Path) -> None:
    rows = [row(1, prompt=f"I am {name}@example.com, where is it?") for name in ("mia", "tom")]
    _, report = export(write(tmp_path / "in.jsonl", rows), tmp_path / "out", "--anonymize")
    assert (report["valid"], report["dropped"]["duplicate"], report["redacted"]) == (1, 1, {"email": 2})
    assert "example.com" not in "".join((tmp_path / "out" / f"{name}.jsonl").read_text() for name in SPLITS)


@pytest.mark.parametrize(
    "options",
    [("--train-ratio", ".8"), ("--dedup-by", "prompt+answer"), ("--format", "csv"), ("--eval-ratio", "2")],
)
def test_options_that_mean_nothing_are_refused(tmp_path: Path, options: tuple[str, str]) -> None:
    result, report = export(write(tmp_path / "in.jsonl", [row(1)]), tmp_path / "out", *options)
    assert (result.exit_code, report) == (2, None)


@pytest.mark.parametrize("content", ['[{"a": 1}, {"b"', "[1, 2", "[1 2]", '[{"a": 1}] x'])
def test_an_array_that_breaks_off_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "in.json"
    file.write_text(content)
    with pytest.raises(Rejected, match="no JSON array to its end"):
        list(records_in(file))


@given(
    st.lists(st.dictionaries(st.text(max_size=3), st.text('[]{}",\\ x', max_size=8), max_size=3), max_size=5),
    st.integers(0, 4),
)
def test_an_array_is_read_whole(tmp_path_factory: pytest.TempPathFactory, rows: list[Any], indent: int) -> None:
    file = tmp_path_factory.mktemp("array") / "in.json"
    file.write_text(json.dumps(rows, indent=indent or None))
    assert list(records_in(file)) == rows


def test_a_large_array_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    file, text = tmp_path / "in.json", "x" * 1000
    with file.open("w") as array:
        array.write("[" + ",".join(json.dumps({"n": n, "text": text}) for n in range(20_000)) + "]")
    tracemalloc.start()
    try:
        assert sum(1 for _ in records_in(file)) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
