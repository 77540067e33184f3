"""What the deployer folds of a turn: the same from its header as from its body, and from the body without a header."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from nats.aio.msg import Msg

from ratchet.bus.connection import Bus
from ratchet.bus.envelope import SUMMARY, Record, Sealer
from ratchet.bus.ordered_reader import read_summary
from ratchet.bus.testing import FakeBroker, FakeBus
from ratchet.canary_deployer.domain.rules import Rules, Stage
from ratchet.canary_deployer.domain.trajectories import Batch, Call, Compared, Started, Terms, Window, call_of
from ratchet.core.contract import Turn, named_id
from ratchet.core.contract.trajectory import PolicyClaim
from ratchet.core.contract.turn import TurnSummary
from tests.support.contract_files import CONTRACTS, SCHEMAS, fast
from tests.support.messages import AT, turn
from tests.support.real_data import AIRLINE, needs_real_data
from tests.support.schema_values import values

STORED_AT = 7.0
SEALER = Sealer(CONTRACTS, "gateway", lambda: AT)


@pytest.fixture
def bus() -> Bus:
    return FakeBus(FakeBroker(CONTRACTS))


def delivered(record: Record, *, body: bool) -> Msg:
    """A record as a reader gets it, with its body or without."""
    client: Any = None  # it is read, and never answered
    reply = "$JS.ACK.RL_TURNS.reader.1.1.1.1767614400000000000.0"
    return Msg(client, record.subject, reply, record.body if body else b"", dict(record.headers))


def by_header(bus: Bus, record: Record) -> Call | None:
    """What the deployer folds of a delivery without a body; None when it has to fetch that."""
    summary = read_summary(bus, delivered(record, body=False), TurnSummary)
    return None if summary is None else call_of(summary, STORED_AT)


def by_body(bus: Bus, record: Record) -> Call:
    """What it folds of the body."""
    message = bus.read(delivered(record, body=True))[0].message
    assert isinstance(message, Turn)
    return call_of(message.header_summary, STORED_AT)


@cache
def turns() -> st.SearchStrategy[Turn]:
    """Any turn that its contract takes."""
    schema = SCHEMAS["turn.v1"]
    return values(schema, schema).filter(fast("turn.v1").is_valid).map(lambda one: msgspec.convert(one, Turn))


@settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(one=turns())
def test_the_header_of_any_turn_folds_as_its_body_does(one: Turn) -> None:
    bus = FakeBus(FakeBroker(CONTRACTS))
    record = SEALER.seal(one)
    assert by_header(bus, record) == by_body(bus, record)


def real_turns() -> Iterator[Turn]:
    """The calls of real runs: of both arms, some failed, some given up by their agent, some answered by another."""
    for run in json.loads(AIRLINE.read_text()):
        arm, version = ("canary", 2) if run["trial"] % 2 else ("stable", 1)
        answers = [place for place, message in enumerate(run["traj"]) if message["role"] == "assistant"]
        for index, place in enumerate(answers):
            failed, moved = index % 5 == 2, index == 9
            answered_by = PolicyClaim(
                role="support", version=version, digest="a" * 64, arm="mixed" if moved else arm, weight=0.25
            )
            yield turn(
                f"{run['task_id']}-{run['trial']}",
                index,
                timestamp=AT + timedelta(seconds=1.7 * index),
                messages=run["traj"][:place],
                response=None if failed else run["traj"][place],
                policy=answered_by,
                error="the engine is away" if failed else None,
                finish_reason="cancelled" if index % 4 == 3 else "stop",
                latency_ms=None if index == 6 else 100.3 * index,
            )


def folded(calls: list[Call]) -> Window:
    """The trajectories of calls, each started on its own arm."""
    window, rules = Window(), Rules(stages=(Stage(0.25, 0, 0),))
    compared = Compared("r", 1, 2, frozenset({0.25}))
    arms = {
        named_id("trajectory", f"{task}-{trial}"): ("canary", 2) if trial % 2 else ("stable", 1)
        for task in range(30)
        for trial in range(4)
    }
    starts = [Started(one, 0.0, arm, version, 0.25, "r", Terms()) for one, (arm, version) in arms.items()]
    window.fold(Batch([*starts, *calls], STORED_AT), compared, rules)
    return window


@needs_real_data
def test_real_turns_fold_from_headers_as_from_bodies(bus: Bus) -> None:
    records = [SEALER.seal(one) for one in real_turns()]
    headers = [call for record in records if (call := by_header(bus, record)) is not None]
    bodies = [by_body(bus, record) for record in records]
    assert len(headers) == len(bodies) > 500
    one, other = folded(headers), folded(bodies)
    assert (one.stable, one.canary, one.chunks) == (other.stable, other.canary, other.chunks)
    assert min(one.canary.calls, one.canary.errors, one.canary.hung, one.canary.moved) > 0


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "no JSON",
        "[]",
        "{}",
        '{"trajectory_id": "17", "timestamp": "2026-01-05T12:00:01Z", "index": 0, "arm": "stable", "version": 1}',
        "[" * 200_000,
    ],
)
def test_a_turn_without_a_valid_header_is_read_from_its_body(bus: Bus, header: str | None) -> None:
    record = SEALER.seal(turn())
    others = {name: value for name, value in record.headers.items() if name != SUMMARY}
    broken = msgspec.structs.replace(record, headers=others | ({} if header is None else {SUMMARY: header}))
    assert by_header(bus, broken) is None
    assert by_body(bus, broken) == by_header(bus, record)


def test_a_header_of_a_newer_gateway_is_read(bus: Bus) -> None:
    record = SEALER.seal(turn())
    newer = json.dumps(json.loads(record.headers[SUMMARY]) | {"engine": "vllm", "arm": "shadow"})
    read = by_header(bus, msgspec.structs.replace(record, headers=record.headers | {SUMMARY: newer}))
    assert read is not None
    assert (read.arm, read.trajectory_id) == ("shadow", turn().trajectory_id)


def test_a_header_on_a_topic_without_summaries_is_not_read(bus: Bus) -> None:
    record = SEALER.seal(turn())
    moved = msgspec.structs.replace(record, subject="agent.rl.start.v1.support")
    assert by_header(bus, moved) is None


def test_a_header_holds_no_text_of_the_conversation() -> None:
    secret = turn(error="the key sk-1234 was refused", finish_reason="my card is 4111", session_id="ann@example.com")
    summary = json.loads(SEALER.seal(secret).headers[SUMMARY])
    assert summary.keys() == {"trajectory_id", "timestamp", "index", "arm", "version", "failed", "latency_ms"}
    assert not {"sk-1234", "4111", "ann@example.com"} & set(str(summary).replace(",", " ").split())
