"""Importing files in tau-bench's format: what becomes of every kind of record, and what is refused."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.contract import Message, Trajectory, encode
from ratchet.core.errors import BusUnavailable, NotFound, Rejected
from ratchet.core.rules.chat import chat_messages
from ratchet.extras.importers.base import ImportOptions
from ratchet.extras.importers.importing import import_file
from ratchet.extras.importers.tau_bench import EPOCH, TAU_BENCH, trajectory_of
from tests.support.imports import CONTRACTS, Published
from tests.support.real_data import AIRLINE, needs_real_data

Record = dict[str, Any]


class Absent:
    """A bus whose broker is away."""

    async def publish_all(self, messages: Sequence[Message]) -> None:
        raise BusUnavailable("broker does not answer")


def call(name: str, arguments: str, call_id: str = "call_1") -> Record:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def record(**changes: Any) -> Record:
    plain = {
        "task_id": 3,
        "trial": 1,
        "reward": 1.0,
        "info": {"task": {"user_id": "mia"}, "source": "user"},
        "traj": [
            {"role": "system", "content": "# Retail agent policy\n\nBe kind."},
            {"role": "user", "content": "Hello, I am mia@example.com"},
            {"role": "assistant", "content": None, "tool_calls": [call("find_user", '{"email": "mia@example.com"}')]},
            {"role": "tool", "tool_call_id": "call_1", "name": "find_user", "content": "Error: user not found"},
            {"role": "assistant", "content": "I cannot find you."},
            {"role": "user", "content": "###STOP###"},
        ],
    }
    return copy.deepcopy(plain) | changes


def written(tmp_path: Path, *records: object) -> Path:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(list(records)))
    return path


def imported(item: object) -> Trajectory:
    trajectory = trajectory_of(item, ImportOptions())
    CONTRACTS.check_strict(trajectory)
    return trajectory


async def test_a_record_becomes_a_trajectory_of_turns_with_a_verified_outcome(tmp_path: Path) -> None:
    bus = Published()
    report = await import_file(
        TAU_BENCH, bus, written(tmp_path, record()), ImportOptions(role="support", model="gpt-4o")
    )
    (trajectory,) = bus.trajectories
    assert (report.records, report.published, report.malformed) == (1, 1, [])
    assert (trajectory.role, trajectory.metadata.model, trajectory.metadata.source) == (
        "support",
        "gpt-4o",
        "import:tau-bench",
    )
    assert trajectory.task_context.domain == "retail"
    assert trajectory.task_context.group_key == "tau-bench/retail/3"
    assert trajectory.task_context.instructions == "# Retail agent policy\n\nBe kind."
    assert trajectory.outcome is not None
    assert (trajectory.outcome.status, trajectory.outcome.verified_by) == ("success", "environment")
    looked, answered = trajectory.turns
    assert (looked.action.tool_name, looked.result.success) == ("find_user", False)
    assert answered.action.raw_response == "I cannot find you."
    assert {trajectory.start_timestamp, trajectory.end_timestamp, looked.timestamp} == {EPOCH}


async def test_secrets_are_redacted_before_publishing_and_counted(tmp_path: Path) -> None:
    bus = Published()
    report = await import_file(TAU_BENCH, bus, written(tmp_path, record()))
    assert b"mia@example.com" not in encode(bus.messages[0])
    assert bus.trajectories[0].turns[0].action.tool_args == {"email": "[REDACTED:email]"}
    assert report.redactions == Counter(email=2)
    assert bus.trajectories[0].labels == {"trial": 1, "redactions": {"email": 2}}


async def test_importing_twice_publishes_the_same_bytes(tmp_path: Path) -> None:
    first, second = Published(), Published()
    await import_file(TAU_BENCH, first, written(tmp_path, record(), record(trial=2)))
    (tmp_path / "other").mkdir()
    await import_file(TAU_BENCH, second, written(tmp_path / "other", "noise", record(trial=2, info=None), record()))
    assert sorted(map(encode, first.messages)) == sorted(map(encode, second.messages))
    assert len({message.event_id for message in first.messages}) == 2


async def test_a_record_that_stands_twice_in_a_file_is_published_once(tmp_path: Path) -> None:
    bus = Published()
    report = await import_file(TAU_BENCH, bus, written(tmp_path, record(), record(), record(trial=2)))
    assert (report.published, report.repeated, len(bus.messages)) == (2, 1, 2)


@pytest.mark.parametrize(
    ("reward", "status", "completion"),
    [
        (1, "success", 100.0),
        (True, "success", 100.0),
        (0.9999999, "success", 100.0),
        (0.25, "partial", 25.0),
        (0, "failure", 0.0),
        (False, "failure", 0.0),
        (-1.0, "failure", 0.0),
        (3.0, "success", 100.0),
    ],
)
def test_rewards_become_outcomes(reward: float, status: str, completion: float) -> None:
    outcome = imported(record(reward=reward)).outcome
    assert outcome is not None
    assert (outcome.status, outcome.completion_percentage, outcome.score) == (status, completion, float(reward))


def test_parallel_calls_content_parts_and_extra_members_are_kept() -> None:
    chat = [
        {"role": "user", "content": [{"type": "text", "text": "two things"}]},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "both"}],
            "refusal": None,
            "tool_calls": [call("f", '{"a":1}', "x"), call("g", "not json", "y")],
        },
        {"role": "tool", "tool_call_id": "y", "content": "2"},
        {"role": "tool", "tool_call_id": "x", "content": [{"type": "text", "text": "1"}]},
        {"role": "assistant", "content": ""},
    ]
    trajectory = imported({**record(traj=chat), "extra": {"seed": 7}})
    assert [turn.action.tool_name for turn in trajectory.turns] == ["f", "g", None]
    assert trajectory.turns[0].turn_ref == trajectory.turns[1].turn_ref is not None
    back = chat_messages(trajectory)
    assert [call["function"]["arguments"] for call in back[1]["tool_calls"]] == ['{"a":1}', "not json"]
    assert [message["content"] for message in back if message["role"] == "tool"] == ["2", chat[3]["content"]]


def test_the_legacy_function_call_is_read() -> None:
    chat = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "done"},
    ]
    (turn,) = imported(record(traj=chat)).turns
    assert (turn.action.tool_name, turn.result.output) == ("f", "done")


def test_what_the_format_may_leave_out_is_not_needed() -> None:
    plain = record(task_id="book-7")
    for name in ("info", "trial"):
        del plain[name]
    plain["traj"] = plain["traj"][1:]
    trajectory = imported(plain)
    assert trajectory.task_context.group_key == "tau-bench/none/book-7"
    assert trajectory_of(plain, ImportOptions(domain="telecom")).task_context.domain == "telecom"


MALFORMED: list[tuple[object, str]] = [
    ("text", "is not an object"),
    (None, "is not an object"),
    ({}, "has no task_id, reward, traj"),
    (record(reward=None), "has no reward"),
    (record(reward="1.0"), "reward is not a number"),
    (record(reward=float("nan")), "reward is not a number"),
    (record(reward=10**400), "reward is not a number"),
    (record(task_id=[1]), "task_id is neither"),
    (record(traj={"role": "user"}), "traj is not a list"),
    (record(traj=[]), "traj is not a list"),
    (record(traj=[{"role": "user", "content": "hi"}]), "no message of the assistant"),
    (record(traj=["hi"]), "message 0 of traj is not an object"),
    (record(traj=[{"role": "robot", "content": "hi"}]), "message 0 has the role 'robot'"),
    (record(traj=[{"role": "assistant", "content": 7}]), "message 0 has content"),
    (record(traj=[{"role": "assistant", "content": "\ud800"}]), "surrogates not allowed"),
]


async def test_malformed_records_are_reported_one_by_one_and_rest_is_imported(tmp_path: Path) -> None:
    bus = Published()
    items = [record(trial=-1), *(item for item, _ in MALFORMED), record(trial=-2)]
    report = await import_file(TAU_BENCH, bus, written(tmp_path, *items))
    assert (report.records, report.published) == (len(MALFORMED) + 2, 2)
    assert [malformed.index for malformed in report.malformed] == list(range(1, len(MALFORMED) + 1))
    for malformed, (_, reason) in zip(report.malformed, MALFORMED, strict=True):
        assert reason in malformed.reason


async def test_record_that_the_bus_refuses_is_reported_and_others_are_imported(tmp_path: Path) -> None:
    bus = Published(refuse=["tau-bench/retail/3/2"])
    report = await import_file(TAU_BENCH, bus, written(tmp_path, record(trial=1), record(trial=2), record(trial=3)))
    assert [(malformed.index, malformed.reason) for malformed in report.malformed] == [(1, "/: too large")]
    assert [message.labels for message in bus.trajectories] == [
        {"trial": 1, "redactions": {"email": 2}},
        {"trial": 3, "redactions": {"email": 2}},
    ]
    assert report.redactions == Counter(email=4)


async def test_json_lines_and_a_single_record_are_read(tmp_path: Path) -> None:
    lines = tmp_path / "results.jsonl"
    lines.write_text("\n".join([json.dumps(record(), indent=None), "", "{broken", json.dumps(record(trial=2))]))
    bus = Published()
    report = await import_file(TAU_BENCH, bus, lines)
    assert (report.published, [malformed.index for malformed in report.malformed]) == (2, [1])
    single = tmp_path / "single.json"
    single.write_text("\ufeff" + json.dumps(record(), indent=2))
    assert (await import_file(TAU_BENCH, Published(), single)).published == 1


@pytest.mark.parametrize("text", ["not json", "[", '{\n "task_id": 3,\n'])
async def test_a_file_that_is_no_json_at_all_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(Rejected, match="JSON"):
        await import_file(TAU_BENCH, Published(), path)


async def test_a_file_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="holds no file"):
        await import_file(TAU_BENCH, Published(), tmp_path)
    with pytest.raises(NotFound, match="no such file"):
        await import_file(TAU_BENCH, Published(), tmp_path / "none.json")


async def test_an_absent_broker_ends_the_import(tmp_path: Path) -> None:
    with pytest.raises(BusUnavailable):
        await import_file(TAU_BENCH, Absent(), written(tmp_path, record()))


@needs_real_data
async def test_the_real_airline_file_is_imported_whole() -> None:
    bus = Published()
    report = await import_file(TAU_BENCH, bus, AIRLINE)
    assert (report.records, report.published, report.malformed, report.repeated) == (120, 120, [], 0)
    assert Counter(m.outcome.status for m in bus.trajectories if m.outcome) == {"success": 36, "failure": 84}
    assert Counter(Counter(m.task_context.group_key for m in bus.trajectories).values()) == {4: 30}
    assert {m.task_context.domain for m in bus.trajectories} == {"airline"}
    assert report.redactions == Counter(email=81)


@needs_real_data
def test_every_real_chat_can_be_read_back_from_its_trajectory() -> None:
    for item in json.loads(AIRLINE.read_text()):
        written = item["traj"]
        last = max(index for index, message in enumerate(written) if message["role"] != "user")
        back = chat_messages(trajectory_of(item, ImportOptions()))
        assert [message["role"] for message in back] == [message["role"] for message in written[: last + 1]]
        for before, after in zip(written, back, strict=False):
            if "@" not in json.dumps(before):
                assert after["content"] == before["content"]
                called = [call["function"] for call in before.get("tool_calls", [])]
                assert [call["function"] for call in after.get("tool_calls", [])] == called


async def test_what_is_stored_is_counted_and_keeps_its_role(tmp_path: Path) -> None:
    stored = {imported(record()).trajectory_id: "default", imported(record(trial=2)).trajectory_id: "airline"}

    async def roles_of(ids: Sequence[str]) -> dict[str, str]:
        return {name: stored[name] for name in ids if name in stored}

    bus, progress = Published(), []
    path = written(tmp_path, record(), record(trial=2), record(trial=3))
    report = await import_file(
        TAU_BENCH, bus, path, ImportOptions(), roles_of, lambda done, total: progress.append((done, total))
    )
    assert (report.records, report.published, report.present) == (3, 1, 1)
    assert report.elsewhere == {"airline": 1}
    assert [message.session_id for message in bus.trajectories] == ["tau-bench/retail/3/3"]
    assert progress == [(path.stat().st_size, path.stat().st_size)]


@pytest.mark.parametrize("text", [" \n"])
async def test_an_empty_file_is_refused_as_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "empty.json").write_text(text)
    with pytest.raises(Rejected, match=r"empty\.json is empty"):
        await import_file(TAU_BENCH, Published(), tmp_path / "empty.json")
