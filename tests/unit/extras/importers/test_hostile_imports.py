"""Hostile records in every format: each is imported or named, none ends an import, and memory stays bounded."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from ratchet.extras.importers import IMPORTERS
from ratchet.extras.importers.base import Importer, ImportOptions
from ratchet.extras.importers.langfuse import LANGFUSE
from tests.support.hostile import HOSTILE_TEXTS, NUMBERS
from tests.support.imports import imported, write_lines

DEEP = json.loads("[" * 300 + "]" * 300)
VALUES: list[Any] = [
    *HOSTILE_TEXTS[::3],
    *NUMBERS[::2],
    "\0",
    "\ud800",
    DEEP,
    {"a": DEEP},
    None,
    [],
    {},
    [None],
    [[["x"]]],
    True,
]
"""In the place of a text, a list or an object."""
GOOD: dict[str, dict[str, Any]] = {
    "openai-chat": {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "metadata": {"solved": 1},
    },
    "langfuse": {
        "id": "o",
        "trace_id": "t",
        "type": "GENERATION",
        "start_time": "2026-03-01 10:00:00",
        "input": '[{"role": "user", "content": "q"}]',
        "output": '{"role": "assistant", "content": "a"}',
        "usage_details": {"total": 1},
        "total_cost": 1.0,
        "session_id": "s",
        "tags": ["x"],
    },
    "langsmith": {
        "id": "r",
        "trace_id": "t",
        "run_type": "llm",
        "start_time": "2026-03-01T10:00:00",
        "inputs": {"messages": [[{"type": "human", "content": "q"}]]},
        "outputs": {"generations": [[{"message": {"type": "ai", "content": "a"}}]]},
        "feedback_stats": {"solved": {"avg": 1}},
        "extra": {"metadata": {"thread_id": "x"}},
        "child_runs": [],
    },
    "hugging-face": {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        "system": "s",
        "tools": "[]",
        "task_id": "t",
        "solved": 1.0,
    },
}


@pytest.mark.parametrize("name", GOOD)
def test_any_value_in_the_place_of_any_member_is_imported_or_named(tmp_path: Path, name: str) -> None:
    good = GOOD[name]
    scattered = IMPORTERS[name].group_of is not None
    records = [good, *({**good, member: value} for member in good for value in VALUES)]
    if scattered:  # each a trace of its own, but where the trace itself is the hostile value
        records = [
            {**one, "trace_id": f"t{place}"} if one["trace_id"] == "t" else one for place, one in enumerate(records)
        ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))

    first, report = imported(IMPORTERS[name], path, ImportOptions(outcome="solved"))

    assert report.records == len(records)
    assert first.trajectories
    assert report.malformed
    assert first.bodies == imported(IMPORTERS[name], path, ImportOptions(outcome="solved"))[0].bodies


def test_messages_that_are_hostile_are_imported_or_named(tmp_path: Path) -> None:
    chats = [[{"role": "user", "content": value}, {"role": "assistant", "content": "a"}] for value in VALUES]
    chats += [[{"role": "assistant", "content": "a", "tool_calls": value}] for value in VALUES]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"messages": chat}) for chat in chats))
    bus, report = imported(IMPORTERS["openai-chat"], path)
    assert len(bus.trajectories) + report.repeated + len(report.malformed) == len(chats)


def test_a_report_names_a_bounded_number_of_records_and_counts_the_others(tmp_path: Path) -> None:
    _, report = imported(IMPORTERS["openai-chat"], write_lines(tmp_path / "a.jsonl", *[{}] * 1500))
    assert (len(report.malformed), report.more_malformed, report.records) == (1000, 500, 1500)


@pytest.mark.parametrize("importer", [IMPORTERS["openai-chat"], LANGFUSE])
def test_a_large_export_takes_little_memory(tmp_path: Path, importer: Importer) -> None:
    name = "langfuse" if importer is LANGFUSE else "openai-chat"
    path = tmp_path / "a.jsonl"
    with path.open("w") as file:
        for number in range(200):
            record = GOOD[name] | {"trace_id": f"t{number % 50}", "id": f"o{number}", "filler": "x" * 100_000}
            file.write(json.dumps(record) + "\n")
    tracemalloc.start()
    _, report = imported(importer, path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert report.records == 200
    assert peak < 12 << 20  # of 20 MB
