"""`ratchet contract check`: a proposed schema against a real stream."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ratchet.bus.clock import utc_now
from ratchet.bus.connection import Bus
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.cli.contract import Findings, read_proposal, replay
from ratchet.core.errors import Rejected
from ratchet.core.service.settings import SharedSettings
from tests.support.command_lines import Shell, shell
from tests.support.contract_files import ALL_SCHEMAS, SCHEMAS, SUMMARIES
from tests.support.messages import trajectory
from tests.support.running import connected
from tests.support.servers import Broker

STREAM, SUBJECT = "RL_TRAJECTORIES", "agent.rl.trajectory.v1"


@pytest.fixture
def settings(nats: Broker) -> SharedSettings:
    return SharedSettings(nats_url=nats.url)


def proposed(tmp_path: Path, edit: Any = lambda schema: None, name: str = "trajectory.v1") -> Path:
    schema = copy.deepcopy(SCHEMAS[name])
    edit(schema)
    file = tmp_path / "proposed.json"
    file.write_text(json.dumps(schema))
    return file


def group_key_required(schema: Any) -> None:
    schema["properties"]["task_context"].setdefault("required", []).append("group_key")


@pytest.fixture
def ratchet(nats: Broker, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    with shell({"RATCHET_NATS_URL": nats.url}, capsys) as typed:
        yield typed


async def publish(bus: Bus, count: int) -> None:
    """Trajectories of the role `support`, and one body that is not a trajectory."""
    await bus.publish_all([trajectory(str(number)) for number in range(count)])
    await bus.nc.jetstream().publish(SUBJECT, b'{"hello": 1}')


async def test_todays_schema_takes_todays_messages(settings: SharedSettings, tmp_path: Path, ratchet: Shell) -> None:
    async with connected(settings) as bus:
        await bus.publish_all([trajectory(str(number)) for number in range(3)])
        code, out, _ = await ratchet.ended("contract", "check", str(proposed(tmp_path)))
    assert code == 0
    assert "compatible: older readers" in out
    assert "3 messages of the last 7 days: 0 would fail" in out


async def test_messages_that_would_fail_are_listed_with_place_and_reason(
    settings: SharedSettings, tmp_path: Path, ratchet: Shell
) -> None:
    async with connected(settings) as bus:
        await publish(bus, 3)
        file = proposed(tmp_path, group_key_required)
        code, out, _ = await ratchet.ended("contract", "check", str(file), "--json", "--most", "2")
    answer = json.loads(out)
    replayed = answer["replay"]
    assert code == 3
    assert (replayed["messages"], replayed["failed"], replayed["failed_open"], replayed["failed_today"]) == (4, 4, 4, 1)
    first, second = replayed["failures"]
    assert (first["sequence"], first["role"], first["event_id"]) == (1, "support", trajectory("0").event_id)
    assert (first["path"], first["reason"]) == ("/task_context", '"group_key" is a required property')
    assert (second["sequence"], second["view"], second["fails_today"]) == (2, "open", False)
    assert not answer["compatibility"]["compatible"]
    assert {"path": "/task_context/group_key", "what": "became required"} in answer["compatibility"]["changes"]


async def test_messages_that_only_the_edges_refuse_are_counted_apart(
    settings: SharedSettings, tmp_path: Path, ratchet: Shell
) -> None:
    def without_labels(schema: Any) -> None:
        del schema["properties"]["labels"]

    async with connected(settings) as bus:
        await bus.publish(trajectory("labelled", labels={"a": "b"}))
        code, out, _ = await ratchet.ended("contract", "check", str(proposed(tmp_path, without_labels)))
    assert code == 3
    assert "/labels: was removed" in out
    assert "0 would be refused by readers, 1 only at the edges" in out


async def test_only_the_asked_days_are_read_and_no_consumer_stays(settings: SharedSettings, tmp_path: Path) -> None:
    async with connected(settings) as bus:
        await publish(bus, 1)
        proposal = read_proposal(proposed(tmp_path), None)
        progress: list[tuple[int, int]] = []
        findings = await replay(settings, proposal, 1.0, 10, lambda done, total: progress.append((done, total)))
        later = OrderedReader(bus, STREAM, [SUBJECT], start=utc_now() + timedelta(hours=1))
        assert [batch async for batch in later.to_end()] == []
        assert await bus.nc.jetstream().consumers_info(STREAM) == []
    assert (findings.messages, findings.failed, findings.failed_today) == (2, 1, 1)
    assert progress[-1] == (2, 2)
    assert isinstance(findings, Findings)


async def test_a_work_queue_cannot_be_read_again(settings: SharedSettings, tmp_path: Path) -> None:
    proposal = read_proposal(proposed(tmp_path, name="training.dispatch.v1"), None)
    async with connected(settings):
        with pytest.raises(Rejected, match="work queue"):
            await replay(settings, proposal, 1.0, 10, lambda done, total: None)


async def test_topics_are_listed_and_shown(ratchet: Shell) -> None:
    code, out, _ = await ratchet.ended("contract", "list", "--json")
    assert (code, {topic["name"] for topic in json.loads(out)["topics"]} >= {SUBJECT}) == (0, True)
    code, out, _ = await ratchet.ended("contract", "show", "trajectory.v1", "--json")
    assert (code, json.loads(out)["schema"]) == (0, SCHEMAS["trajectory.v1"])
    stored = json.loads((await ratchet.ended("contract", "list", "--json"))[1])["stored"]
    assert {one["schema"] for one in stored} == ALL_SCHEMAS.keys() - SCHEMAS.keys() - SUMMARIES.keys()
    for name in SUMMARIES:
        code, out, _ = await ratchet.ended("contract", "show", name, "--json")
        assert (code, json.loads(out)["schema"]) == (0, SUMMARIES[name])
    code, out, _ = await ratchet.ended("contract", "show", "cursor.v1", "--json")
    assert (code, json.loads(out)["schema"]) == (0, ALL_SCHEMAS["cursor.v1"])
    assert [one["where"] for one in json.loads(out)["stored"]] == [
        "bucket coordinator, key cursor-<projection>",
        "bucket baselines, key cursor-<projection>",
    ]
    code, _, err = await ratchet.ended("contract", "show", "nonsense.v1")
    assert (code, "no topic has the subject" in err) == (1, True)
