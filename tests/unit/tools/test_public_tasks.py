"""Public tasks without their packages: readers, halves and judges on tasks of our own, and answers of any kind."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ratchet.bus.message import JsonObject
from ratchet.core.errors import RatchetError
from tools.learning.worlds import open_world
from tools.learning.worlds.bfcl import Entry, halves, read_entries
from tools.learning.worlds.bfcl_answers import is_accepted, read_arguments

ORDER: JsonObject = {
    "name": "order_tea",
    "description": "Order tea.",
    "parameters": {
        "type": "dict",
        "properties": {
            "kind": {"type": "string"},
            "cups": {"type": "integer"},
            "heat": {"type": "float"},
            "extras": {"type": "array", "items": {"type": "string"}},
            "cup": {"type": "dict", "properties": {"colour": {"type": "string"}}},
        },
        "required": ["kind", "cups"],
    },
}
ACCEPTED: dict[str, list[Any]] = {
    "kind": ["Earl Grey", "earl gray"],
    "cups": [2],
    "heat": [90.0, ""],
    "extras": [["milk", "honey"], ""],
    "cup": [{"colour": ["red", "blue"], "size": ["big", ""]}, ""],
}
RIGHT: JsonObject = {"kind": "Earl Grey", "cups": 2}
TEA = Entry("tea", [{"role": "user", "content": "Two Earl Greys."}], [ORDER], ("order_tea", ACCEPTED))


def judged(entry: Entry, *calls: tuple[str, str], content: str = "") -> bool:
    return entry.judge(content, calls).success


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"kind": "earl-grey"},
        {"heat": 90},
        {"heat": 90.0},
        {"extras": ["Milk", "honey"]},
        {"cup": {"colour": "Red"}},
        {"cup": {"colour": "blue", "size": "big"}},
    ],
)
def test_accepted_arguments_are_right(more: JsonObject) -> None:
    assert is_accepted(RIGHT | more, ORDER["parameters"], ACCEPTED)


@pytest.mark.parametrize(
    "more",
    [
        {"kind": "green"},
        {"kind": None},
        {"kind": ["Earl Grey"]},
        {"cups": 2.0},
        {"cups": "2"},
        {"cups": True},
        {"cups": 10**400},
        {"heat": "hot"},
        {"heat": 10**400},
        {"heat": True},
        {"extras": "milk"},
        {"extras": ["honey", "milk"]},
        {"extras": [["milk", "honey"]]},
        {"extras": [1, 2]},
        {"cup": {"colour": "green"}},
        {"cup": {"colour": {"colour": "red"}}},
        {"cup": {}},
        {"cup": {"colour": "red", "shape": "round"}},
        {"unknown": 1},
    ],
)
def test_other_arguments_are_wrong(more: JsonObject) -> None:
    assert not is_accepted(RIGHT | more, ORDER["parameters"], ACCEPTED)


@pytest.mark.parametrize("missing", ["kind", "cups"])
def test_what_is_required_has_to_be_there(missing: str) -> None:
    kept = {name: value for name, value in RIGHT.items() if name != missing}
    assert not is_accepted(kept, ORDER["parameters"], ACCEPTED)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "2",
        '"order_tea"',
        '{"kind": "Earl Grey", "cups": 2',
        '{"kind": "Earl Grey", "cups": 2, "cups": 2}',
        '{"kind": "Earl Grey", "cups": NaN}',
        '{"kind": "Earl Grey", "cups": ' + "9" * 5000 + "}",
        '{"kind": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
)
def test_what_is_no_object_of_json_or_names_something_twice_is_wrong(text: str) -> None:
    assert not judged(TEA, ("order_tea", text))


def test_a_right_call_has_to_be_the_only_one() -> None:
    call = ("order_tea", json.dumps(RIGHT))
    assert judged(TEA, call)
    assert judged(TEA, call, content="With pleasure.")
    assert not judged(TEA, call, call)
    assert not judged(TEA, call, ("order_tea", "{"))
    assert not judged(TEA, ("order.tea", call[1]))
    assert not judged(TEA)


def test_calls_are_valid_that_name_a_function_with_an_object() -> None:
    outcome = TEA.judge("", [("order_tea", "{}"), ("order_tea", "2"), ("brew", "{}")])
    assert (outcome.tool_calls, outcome.valid_tool_calls) == (3, 1)


def test_arguments_with_a_repeated_key_are_not_read() -> None:
    assert read_arguments('{"a": {"b": 1}}') == {"a": {"b": 1}}
    assert read_arguments('{"a": {"b": 1, "b": 1}}') is None


def test_tasks_that_share_a_function_are_in_one_half() -> None:
    def entry(name: str, *functions: str) -> Entry:
        return Entry(name, [], [{"name": function} for function in functions], (functions[0], {}))

    chain = [entry("a", "f"), entry("b", "g"), entry("c", "f", "g"), *(entry(f"d{n}", f"h{n}") for n in range(9))]
    names = [{one.task_id for one in half} for half in halves(chain)]
    assert sorted(map(len, names)) == [6, 6]
    assert any({"a", "b", "c"} <= half for half in names)


def test_files_are_read_line_by_line(tmp_path: Path) -> None:
    question: JsonObject = {"id": "tea", "question": [[*TEA.messages]], "function": [ORDER]}
    (tmp_path / "q.json").write_text(json.dumps(question) + "\n\n")
    (tmp_path / "a.json").write_text(json.dumps({"id": "tea", "ground_truth": [{"order_tea": ACCEPTED}]}) + "\n")
    assert read_entries(tmp_path / "q.json", tmp_path / "a.json") == [TEA]


def test_a_task_takes_one_answer() -> None:
    episode = TEA.task().begin()
    assert episode.opening() == list(TEA.messages)
    with pytest.raises(ValueError, match="is open"):
        episode.verdict()
    assert episode.answer({"role": "assistant", "content": None}) == []
    assert not episode.open
    with pytest.raises(ValueError, match="is closed"):
        episode.answer({"role": "assistant", "content": "again"})


@pytest.mark.parametrize("world", ["bfcl", "games", "chain_sum"])
def test_without_its_package_a_world_names_the_remedy(world: str) -> None:
    if find_spec("textarena") is not None:
        pytest.skip("the packages are here: `make tasks` has installed them")
    with pytest.raises(RatchetError, match=r"which is not installed: make tasks$"):
        open_world(world, seed=0)
