"""Argilla's records as preference pairs: what its SDK writes is read, what is dropped counted, no prompt shared."""

from __future__ import annotations

import json
import random
import resource
import tracemalloc
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from typer.testing import CliRunner

from ratchet.cli.data import app
from ratchet.core.contract.schema_report import SchemaReport
from ratchet.core.errors import Conflict, Rejected
from ratchet.core.service.files import locked
from ratchet.extras.argilla.export import MAX_RECORD, ExportOptions, export_pairs, words
from ratchet.extras.argilla.records import Unusable, pair_of
from ratchet.extras.importers.reading import parts_of
from ratchet.trainer_worker.training.local_run import pairs_in
from tests.support.argilla_server import DATASET, KEY, Judgement, argilla_server, record

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


OPTIONS = ExportOptions(0.05, 0.05, 3, 2048, ("prompt", "chosen", "rejected"), anonymize=False, shuffle_seed=42)
ANSWERS = [{"value": value, "text": value, "description": None} for value in ("response_a", "response_b")]
QUESTIONS = {
    "preference": {"type": "label_selection", "options": ANSWERS},
    "ranking": {"type": "ranking", "options": ANSWERS},
}


def judged(number: int, question: str, *judgements: tuple[object, str]) -> dict[str, Any]:
    fields = {"prompt": f"Where is order {number}?", "response_a": "Lost.", "response_b": f"It is sent, {number}."}
    pairs = zip(JUDGES, judgements, strict=False)
    answered = [Judgement(question, value, status, judge) for judge, (value, status) in pairs]
    return record(number, fields, answered, suggested=("preference", "response_a"))


def written_by_the_sdk(directory: Path, form: str) -> Path:
    """Records of a server as its client writes them: labels of several judges, a ranking, a label of one judge."""
    import argilla as rg  # noqa: PLC0415 - it takes seconds

    for_b = ("response_b", "submitted")
    ranking = [{"value": "response_b", "rank": 1}, {"value": "response_a", "rank": 2}]
    records = [
        judged(1, "preference", for_b, for_b, ("response_a", "submitted")),
        judged(2, "ranking", (ranking, "submitted")),
        judged(3, "preference", for_b),
    ]
    fields = {name: {"type": "text"} for name in records[0]["fields"]}
    with argilla_server(fields, QUESTIONS, records) as url:
        stored = rg.Argilla(api_url=url, api_key=KEY).datasets(DATASET)
        assert stored is not None
        jsonl = directory / "records.jsonl"
        writers: dict[str, Callable[[], object]] = {
            "to_disk": lambda: stored.to_disk(str(directory)),
            "to_json": lambda: stored.records(batch_size=2).to_json(directory / "records.json"),
            "to_list": lambda: write(jsonl, stored.records(batch_size=2).to_list(flatten=True)),
            "to_datasets.jsonl": lambda: stored.records.to_datasets().to_json(jsonl),
            "to_datasets.parquet": lambda: stored.records.to_datasets().to_parquet(directory / "records.parquet"),
        }
        writers[form]()
    (file,) = directory.glob("records.*")
    return file


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Support for class-based")  # of Argilla's own classes
@pytest.mark.parametrize("form", ["to_disk", "to_json", "to_list", "to_datasets.jsonl", "to_datasets.parquet"])
def test_what_the_sdk_writes_is_read(tmp_path: Path, form: str) -> None:
    chosen = [pair_of(part.value).chosen[0]["content"] for part in parts_of(written_by_the_sdk(tmp_path, form))]
    assert chosen == [f"It is sent, {number}." for number in (1, 2, 3)]


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
        (row(1, chosen=[{"role": ["assistant"], "content": "x"}]), "malformed"),
        (row(1, chosen=[{"role": "assistant", "tool_calls": "none"}]), "malformed"),
        (row(1, chosen=[{"role": "assistant", "content": [{"type": "image_url", "image_url": "x"}]}]), "malformed"),
        (row(1, chosen=[{"role": "assistant", "content": "x", "name": {"first": "Mia"}}]), "malformed"),
        (row(1, chosen=[{"role": "tool", "content": "x"}]), "empty"),
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
    msgspec.convert(report, SchemaReport)
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


@pytest.mark.parametrize(
    ("bad", "code", "warning"), [(5, 0, ""), (6, 0, "95 % should be"), (10, 0, "95 % should be"), (11, 1, "no-go")]
)
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


def test_anonymous_messages_do_not_name_who_wrote_them(tmp_path: Path) -> None:
    asked = {"role": "user", "content": "Where is my order?", "name": "Mia"}
    answers = [
        {"role": "assistant", "content": "Here.", "name": "Tom"},
        {"role": "tool", "content": "It is.", "name": "track"},
    ]
    file = write(tmp_path / "in.jsonl", [row(1, prompt=[asked], chosen=answers)])
    for options, names in (((), {"Mia", "Tom", "track"}), (("--anonymize",), {"track"})):
        export(file, tmp_path / "out", *options)
        (one,) = lines(tmp_path / "out", "train")
        assert {message["name"] for message in one["prompt"] + one["chosen"] if "name" in message} == names


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
    with pytest.raises(Rejected, match="the list cannot be read from here on"):
        export_pairs(file, tmp_path / "out", OPTIONS, {})


LABELS = (
    "response_a",
    "a",
    "role",
    "assistant",
    "user",
    "content",
    "value",
    "rank",
    "chosen",
    "submitted",
    "tool_calls",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(LABELS) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(LABELS), inner, max_size=4),
    max_leaves=12,
)
NAMES = ("fields", "prompt", "chosen", "rejected", "response_a", "response_b", "responses", "q.responses", "messages")


@given(st.dictionaries(st.sampled_from((*NAMES, "q.responses.status")), JSON, max_size=7))
def test_any_record_is_a_pair_or_counted(tmp_path_factory: pytest.TempPathFactory, record: dict[str, Any]) -> None:
    with suppress(Unusable):
        pair = pair_of(record)
        file = tmp_path_factory.mktemp("pairs") / "train.jsonl"
        file.write_text(json.dumps({"prompt": pair.prompt, "chosen": pair.chosen, "rejected": pair.rejected}))
        assert len(list(pairs_in(file))) == 1


def test_messages_keep_what_a_template_reads_and_nothing_of_their_writer() -> None:
    asked = {"role": "user", "content": "Where?", "user_id": "u-17", "metadata": {"name": "Mia"}}
    call = {"id": "1", "type": "function", "function": {"name": "track", "arguments": {"order": 7}}}
    pair = pair_of({"prompt": [asked], "chosen": [{"role": "assistant", "tool_calls": [call]}], "rejected": "No."})
    assert pair.prompt == [{"role": "user", "content": "Where?"}]
    assert json.loads(pair.chosen[0]["tool_calls"][0]["function"]["arguments"]) == {"order": 7}


@pytest.mark.parametrize(
    ("text", "count"), [("Where is it?", 4), ("请问我的订单在哪里", 9), ("Order7在哪里", 4), ("ฉันรอ", 5), ("", 0)]
)
def test_letters_of_writing_without_spaces_count_as_words(text: str, count: int) -> None:
    assert words(text) == count


def test_a_prompt_that_unicode_spells_twice_is_in_one_split(tmp_path: Path) -> None:
    prompts = [
        f"Caf{letter} {number}, where is it?" for number in range(40) for letter in ("\u00e9", "e\u0301", "E\u0301")
    ]
    rows = [row(n, prompt=prompt, chosen=f"Answer {n}.") for n, prompt in enumerate(prompts)]
    export(write(tmp_path / "in.jsonl", rows), tmp_path / "out")
    numbers = [{one["prompt"][0]["content"].split()[1] for one in lines(tmp_path / "out", split)} for split in SPLITS]
    assert sum(map(len, numbers)) == 40


@pytest.mark.parametrize("content", [b"[ ]", b"\xef\xbb\xbf[]", b"\xef\xbb\xbf", b""])
def test_export_of_a_file_without_records_counts_none(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "in.json"
    file.write_bytes(content)
    assert export_pairs(file, tmp_path / "out", OPTIONS, {}).total == 0


def test_export_of_a_line_without_end_drops_one_record_and_is_small(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    with file.open("wb") as content:
        content.truncate(MAX_RECORD * 6)  # zeros that take no disk
        content.seek(0, 2)
        content.write(b"\n" + json.dumps(row(1)).encode())
    tracemalloc.start()
    try:
        report = export_pairs(file, tmp_path / "out", OPTIONS, {})
        assert tracemalloc.get_traced_memory()[1] < MAX_RECORD * 3
    finally:
        tracemalloc.stop()
    assert (report.total, report.valid) == (2, 1)
    assert report.first_dropped["malformed"][0].problem == f"is longer than {MAX_RECORD} bytes"


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl", [row(n) for n in range(3)])

    def count(text: str) -> int:
        with file.open("a") as more:
            more.write("\n")
        return words(text)

    with pytest.raises(Rejected, match="has changed"):
        export_pairs(file, tmp_path / "out", OPTIONS, {}, count)
    assert not list((tmp_path / "out").iterdir())


def test_an_export_that_breaks_off_leaves_no_splits_of_two_exports(tmp_path: Path) -> None:
    file, output = write(tmp_path / "in.jsonl", [row(n) for n in range(50)]), tmp_path / "out"
    export_pairs(file, output, OPTIONS, {})
    (output / "eval.jsonl").unlink()
    (output / "eval.jsonl").mkdir()  # cannot be replaced
    with pytest.raises(OSError, match=r"eval\.jsonl"):
        export_pairs(file, output, OPTIONS, {})
    assert not (output / "train.jsonl").exists()
    (output / "eval.jsonl").rmdir()
    export_pairs(file, output, OPTIONS, {})
    assert (output / "train.jsonl").exists()


@pytest.mark.parametrize("name", ["train.jsonl", "eval.jsonl", "test.jsonl", "schema_report.json"])
def test_files_that_no_export_wrote_are_not_replaced(tmp_path: Path, name: str) -> None:
    file, output = write(tmp_path / "in.jsonl", [row(1)]), tmp_path / "out"
    output.mkdir()
    (output / name).write_text("{}\n")
    with pytest.raises(Rejected, match=f"has {name} of something else: name another directory"):
        export_pairs(file, output, OPTIONS, {})
    assert {one.name: one.read_text() for one in output.iterdir()} == {name: "{}\n"}


def test_an_export_does_not_replace_its_own_input(tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", [row(1)])
    with pytest.raises(Rejected, match="its own input"):
        export_pairs(file, tmp_path, OPTIONS, {})
    assert lines(tmp_path, "train") == [row(1)]


def test_one_export_at_a_time_writes_to_a_directory(tmp_path: Path) -> None:
    file, output = write(tmp_path / "in.jsonl", [row(n) for n in range(5)]), tmp_path / "out"
    (output / ".argilla-export-killed").mkdir(parents=True)
    with locked(output), pytest.raises(Conflict, match="another process"):
        export_pairs(file, output, OPTIONS, {})
    export_pairs(file, output, OPTIONS, {})
    assert not list(output.glob(".*"))


def test_a_full_disk_is_an_error_in_words_and_changes_nothing(tmp_path: Path) -> None:
    file, output = write(tmp_path / "in.jsonl", [row(1)]), tmp_path / "out"
    export_pairs(file, output, OPTIONS, {})
    before = {one.name: one.read_bytes() for one in output.iterdir()}
    many = write(tmp_path / "many.jsonl", [row(n, chosen="x" * 2000) for n in range(1000)])
    with _files_of_at_most(1 << 20), pytest.raises(OSError, match=r"cannot write to .*out"):
        export_pairs(many, output, OPTIONS, {})
    assert {one.name: one.read_bytes() for one in output.iterdir()} == before


@contextmanager
def _files_of_at_most(size: int) -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_first_records_dropped_for_a_reason_are_named_with_what_is_wrong(tmp_path: Path) -> None:
    bad = [row(1), "no record", row(1), {"prompt": "Where?"}, row(2, chosen=5), row(3, rejected=[7])]
    file = write(tmp_path / "in.jsonl", bad)
    file.write_text("\n" + file.read_text())
    result, report = export(file, tmp_path / "out")
    msgspec.convert(report, SchemaReport)
    assert report["dropped"]["malformed"] == 4
    assert report["first_dropped"] == {
        "malformed": [
            {"number": 3, "problem": "it is not a JSON object"},
            {
                "number": 5,
                "problem": "it has no chosen and rejected answer, and not two to judge: response_a, response_b",
            },
            {"number": 6, "problem": "the chosen answer is neither a text nor a list of messages"},
        ],
        "duplicate": [{"number": 4, "problem": "an earlier one has the same prompt, chosen, rejected"}],
    }
    assert "in.jsonl:3: malformed: it is not a JSON object\n" in result.stderr
    assert "in.jsonl:4: duplicate: an earlier one has" in result.stderr
    assert "the files are written all the same" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "options", [("--train-ratio", "0", "--eval-ratio", "0.95"), ("--max-prompt-toks", "2")], ids=["ratio", "bounds"]
)
def test_options_that_leave_nothing_are_a_wrong_command_line(tmp_path: Path, options: tuple[str, ...]) -> None:
    result, report = export(write(tmp_path / "in.jsonl", [row(1)]), tmp_path / "out", *options)
    assert (result.exit_code, report) == (2, None)


def test_a_file_of_another_ending_is_refused(tmp_path: Path) -> None:
    result, report = export(write(tmp_path / "in.csv", [row(1)]), tmp_path / "out")
    assert isinstance(result.exception, Rejected)
    assert ".jsonl, .json or .parquet" in str(result.exception)
    assert report is None
