"""Sets of tools are searched once, and what is remembered of that is bounded in bytes."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec

from ratchet.gateway.domain.tool_sets import SET_BYTES, ToolSets
from ratchet.gateway.recording import TOOL_BYTES
from ratchet.rules.redaction import Redacted
from tests.unit.gateway.test_recording import job, recording, request, turn_of

TAKEN = {"email": 1}


def tools(number: int, length: int = 10) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": f"f{number}", "description": "x" * length}}]


def size(number: int, length: int = 10) -> int:
    return SET_BYTES + len(msgspec.json.encode(tools(number, length)))


def test_what_was_left_of_a_set_comes_back() -> None:
    sets = ToolSets(10_000)
    sets.put("a", Redacted(tools(1), TAKEN))
    sets.put("b", Redacted(tools(2)))
    assert sets.get("a", tools(7)) == Redacted(tools(1), TAKEN)
    assert sets.get("b", tools(2)) == Redacted(tools(2))
    assert sets.get("c", tools(3)) is None


def test_the_least_recently_used_make_room_by_bytes() -> None:
    sets = ToolSets(2 * size(0, 1_000) + 100)
    for name in ("a", "b"):
        sets.put(name, Redacted(tools(0, 1_000), TAKEN))
    sets.get("a", [])
    sets.put("c", Redacted(tools(0, 1_000), TAKEN))
    assert [name for name in "abc" if sets.get(name, []) is not None] == ["a", "c"]
    assert sets.size == 2 * size(0, 1_000)


def test_one_that_is_larger_than_all_room_is_not_kept_and_costs_no_other_its_place() -> None:
    sets = ToolSets(10_000)
    sets.put("a", Redacted(tools(1), TAKEN))
    sets.put("b", Redacted(tools(0, 20_000), TAKEN))
    assert (len(sets), sets.size) == (1, size(1))
    assert sets.get("b", tools(0, 20_000)) is None


def test_of_a_set_that_nothing_was_taken_out_of_no_text_is_kept() -> None:
    sets = ToolSets(10_000)
    sets.put("a", Redacted(tools(0, 1_000_000)))
    assert sets.size == SET_BYTES


def test_what_was_taken_out_of_tools_is_taken_out_of_every_call_that_offers_them() -> None:
    found = recording()
    offered = [*tools(0), {"type": "function", "function": {"name": "f", "description": "ask jo@example.com"}}]
    for number in range(2):
        sent = request(tools=offered, user=str(number))
        turn = turn_of(found.record(job(sent)))
        assert "jo@example.com" not in str(turn.tools)
        assert turn.redactions == {"email": 1}


def test_a_recorder_does_not_grow_with_the_tools_that_agents_offer() -> None:
    """Each call brings tools of its own, a megabyte of them, with something to take out."""
    found = recording()
    text = "ask jo@example.com " + "lorem ipsum " * 87_000
    tracemalloc.start()
    try:
        for number in range(2 * TOOL_BYTES // len(text)):
            offered = [{"type": "function", "function": {"name": f"f{number}", "description": text}}]
            assert turn_of(found.record(job(request(tools=offered)))).redactions == {"email": 1}
        assert tracemalloc.get_traced_memory()[0] < 1.2 * TOOL_BYTES
    finally:
        tracemalloc.stop()
