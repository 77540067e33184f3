"""When a trace is over, and what its spans add up to: by time, order, agents, tools and judgements."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import msgspec
from nats.aio.client import Client as Nats

from ratchet.bus.connection import Bus
from ratchet.bus.envelope import Record
from ratchet.bus.received import Causing
from ratchet.core.contract import Message, Spans, Trajectory, named_id
from ratchet.core.contract.spans import AGENT, INFERENCE, TOOL, Evaluation, Span, run_id
from ratchet.core.contract.turn import Provider, Usage
from ratchet.core.errors import BusUnavailable
from ratchet.core.service.contracts import load_contracts
from ratchet.dialects.telemetry.span_tree import MOST_ANSWERS, tree_of
from ratchet.trajectory_collector.clickhouse_facts import Facts
from ratchet.trajectory_collector.domain import Inference
from ratchet.trajectory_collector.nats_streams import Streams
from ratchet.trajectory_collector.traces.assembler import TraceAssembler
from ratchet.trajectory_collector.traces.clickhouse_spans import Parts, Place, StoredSpans, TraceKey
from ratchet.trajectory_collector.traces.closing import ENTRY, IDLE, LONGEST, ROOT, Heard, Life
from ratchet.trajectory_collector.traces.folding import turn_id
from ratchet.trajectory_collector.traces.judgements import judged
from tests.support.telemetry import RECEIVED, folded

TRACE = "1" * 32
SYSTEM, ASKED = {"role": "system", "content": "Help."}, {"role": "user", "content": "Where is K47?"}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}],
}
ANSWERED = {"role": "assistant", "content": "It is packed."}


def heard(minutes: float, **members: Any) -> Heard:
    return Heard(RECEIVED + timedelta(minutes=minutes), **{"spans": 1, "calls": 1, **members})


def at(minutes: float) -> Any:
    return RECEIVED + timedelta(minutes=minutes)


def lived(*parts: Heard) -> Life:
    life = Life.of(parts[0])
    for part in parts[1:]:
        life.hear(part)
    return life


def test_trace_closes_a_minute_after_its_root_whatever_comes_until_then() -> None:
    life = lived(heard(0), heard(5, has_root=True), heard(5.5), heard(5.9, has_root=True))
    assert life.closes_at == at(5) + ROOT
    assert (life.due(at(6)), life.due(at(6.1)), life.late) == (None, at(6), 0)


def test_trace_without_a_root_closes_after_75_idle_minutes() -> None:
    life = lived(heard(0), heard(70), heard(140))
    assert life.closes_at == at(140) + IDLE
    assert lived(heard(0), heard(3, has_entry=True)).closes_at == at(3) + ENTRY


def test_trace_whose_ids_are_used_for_ever_closes_after_a_day() -> None:
    life = lived(*(heard(hour * 60) for hour in range(30)))
    assert life.closes_at == at(0) + LONGEST
    assert life.late > 0
    assert life.revises_at == at(29 * 60) + IDLE


def test_what_comes_late_makes_one_revision_and_the_rest_is_counted() -> None:
    life = lived(heard(0, has_root=True), heard(10), heard(60))
    assert (life.closes_at, life.revises_at, life.late) == (at(1), at(60) + IDLE, 2)
    assert life.due(at(30)) == at(1)
    assert life.due(at(136)) == at(135)
    life.hear(heard(200, spans=7))
    assert (life.revises_at, life.too_late) == (at(135), 7)
    assert not life.is_over(at(200))
    assert life.is_over(at(211))


def test_evaluation_that_comes_late_is_no_revision() -> None:
    life = lived(heard(0, has_root=True), heard(10, calls=0, evaluations=1))
    assert (life.revises_at, life.judged, life.late) == (None, at(10), 0)


def span(number: int, parent: int | None = None, kind: str = INFERENCE, **members: Any) -> Span:
    began = RECEIVED + timedelta(seconds=number)
    above = f"{parent:016x}" if parent is not None else None
    given = {"name": f"span {number}", "started_at": began, "ended_at": began + timedelta(seconds=0.5), **members}
    return Span(span_id=f"{number:016x}", parent_span_id=above, kind=kind, **given)


def batch(*spans: Span, service: str = "shop") -> Spans:
    return Spans(batch_id=named_id("batch"), trace_id=TRACE, spans=list(spans), service=service)


def result(text: str) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": "call_1", "content": text}


FIRST = span(1, 9, prompt=[SYSTEM, ASKED], answers=[CALLED], usage=Usage(prompt=5, completion=3), cost_usd=0.5)
SECOND = span(3, 9, prompt=[SYSTEM, ASKED, CALLED, result("packed")], answers=[ANSWERED], cost_usd=0.25)
ROOT_SPAN = span(9, kind=AGENT, agent="clerk", session="chat-7", started_at=RECEIVED)


def test_calls_become_turns_that_repeat_no_history() -> None:
    made = folded([batch(FIRST, SECOND, ROOT_SPAN)])
    first, second = made.turns
    assert first.turn_id == turn_id("default", TRACE, ("shop", FIRST.span_id))
    assert (second.parent_turn_id, second.messages, second.index) == (first.turn_id, [result("packed")], 1)
    assert [turn.trajectory_id for turn in made.turns] == [run_id(TRACE)] * 2
    assert (first.policy.version, first.policy.arm, first.trainable.ok) == (0, "stable", False)
    assert first.latency_ms == 500
    (trajectory,) = made.assembled.trajectories
    assert (trajectory.metadata.total_cost_usd, trajectory.metadata.total_tokens) == (0.75, 8)
    assert (trajectory.agent_id, trajectory.session_id, trajectory.metadata.source) == ("clerk", "chat-7", "telemetry")
    assert trajectory.labels == {"trace_id": TRACE, "spans": 3, "services": ["shop"]}


def test_span_of_a_tool_adds_time_error_and_the_result_that_no_prompt_has() -> None:
    ran = span(2, 9, TOOL, tool_name="look_up", tool_call_id="call_1", tool_output={"state": "packed"})
    (made,) = folded([batch(FIRST, ran, ROOT_SPAN)]).assembled.trajectories
    assert (made.turns[0].result.output, made.turns[0].result.success) == ({"state": "packed"}, True)
    assert made.turns[0].result.execution_time_ms == 500
    failed = span(2, 9, TOOL, tool_call_id="call_1", error="no such order")
    (made,) = folded([batch(FIRST, failed, ROOT_SPAN)]).assembled.trajectories
    assert (made.turns[0].result.success, made.turns[0].result.error) == (False, "no such order")


def test_sub_agents_of_sub_agents_name_the_one_that_called_them() -> None:
    def agent(number: int, parent: int | None) -> list[Span]:
        prompt = [{"role": "system", "content": f"agent {number}"}, ASKED]
        call = span(number + 1, number, prompt=prompt, answers=[ANSWERED])
        ended = RECEIVED + timedelta(hours=1, seconds=-number)
        later = span(number + 2, number, prompt=[*prompt, ANSWERED, ASKED], answers=[ANSWERED], started_at=ended)
        return [span(number, parent, AGENT, agent=f"agent {number}"), call, later]

    made = folded([batch(*agent(10, None), *agent(20, 10), *agent(30, 20))]).assembled.trajectories
    by_agent = {each.agent_id: each for each in made}
    assert by_agent["agent 10"].parent_trajectory_id is None
    assert by_agent["agent 20"].parent_trajectory_id == by_agent["agent 10"].trajectory_id
    assert by_agent["agent 30"].parent_trajectory_id == by_agent["agent 20"].trajectory_id
    assert by_agent["agent 30"].subordinate_profile == "agent 30"


def test_failed_root_is_a_failure_that_was_inferred() -> None:
    broken = span(9, kind=AGENT, error="the customer left")
    (made,) = folded([batch(FIRST, SECOND, broken)]).assembled.trajectories
    assert made.outcome is not None
    assert (made.outcome.status, made.outcome.inferred_from) == ("failure", "error")
    (made,) = folded([batch(FIRST, SECOND, broken)], lambda: Inference(by_errors=False)).assembled.trajectories
    assert made.outcome is None


def test_several_answers_are_as_many_turns() -> None:
    made = folded([batch(span(1, prompt=[ASKED], answers=[ANSWERED, CALLED], usage=Usage(prompt=5, completion=3)))])
    assert [turn.response for turn in made.turns] == [ANSWERED, CALLED]
    assert [turn.usage is not None for turn in made.turns] == [True, False]


def test_more_answers_than_an_agent_asks_for_repeat_no_prompt() -> None:
    answers = [{"role": "assistant", "content": f"It is at {number}."} for number in range(1000)]
    made = folded([batch(span(1, prompt=[ASKED], answers=answers))])
    assert [turn.response for turn in made.turns] == answers[:MOST_ANSWERS]
    assert len(made.assembled.trajectories) == MOST_ANSWERS
    assert made.assembled.repeated == 1000 - MOST_ANSWERS


def test_order_and_batches_of_spans_change_no_message() -> None:
    spans = [FIRST, SECOND, ROOT_SPAN]
    expected = folded([batch(*spans)])
    for parts in ([batch(*reversed(spans))], [batch(each) for each in (SECOND, ROOT_SPAN, FIRST, SECOND)]):
        made = folded(parts)
        assert (made.turns, made.assembled) == (expected.turns, expected.assembled)


def test_evaluations_are_about_the_call_that_they_name_or_lie_at() -> None:
    def evaluated(**members: Any) -> Evaluation:
        return Evaluation(at=RECEIVED, name="relevance", **members)

    other = span(5, 9, prompt=[{"role": "user", "content": "Aside?"}], answers=[ANSWERED], provider=Provider(id="c-5"))
    verdicts = [evaluated(label="Pass"), evaluated(value=0.5, explanation="It is short.", response_id="c-5")]
    parts = [batch(FIRST, SECOND, other, msgspec.structs.replace(ROOT_SPAN, evaluations=verdicts))]
    made = folded(parts)
    feedback = list(judged("default", TRACE, tree_of(parts), made))
    aside = next(each for each in made.assembled.trajectories if each.parent_trajectory_id)
    assert [(each.kind, each.value, each.trajectory_id) for each in feedback] == [
        ("thumbs", True, run_id(TRACE)),
        ("metric", 0.5, aside.trajectory_id),
        ("comment", "It is short.", aside.trajectory_id),
    ]
    assert list(judged("default", TRACE, tree_of([*parts, *parts]), made)) == feedback


KEY: TraceKey = ("default", TRACE)


class Publishing(Bus):
    """A bus that stores messages by their ids, and dies after some."""

    def __init__(self, stored: dict[str, Record], most: int) -> None:
        super().__init__(Nats(), name="test", contracts=load_contracts(), replicas=1)
        self._stored, self._most = stored, most

    async def publish_all(self, messages: Collection[Message], *, cause: Causing | None = None) -> None:
        for message in messages:
            await self.publish_record(self.seal(message, cause))

    async def publish_record(self, record: Record) -> None:
        if self._most == 0:
            raise BusUnavailable("killed")
        self._most -= 1
        self._stored[record.headers["Nats-Msg-Id"]] = record


class OneTrace(StoredSpans):
    """The spans of one trace; what was published of it is stored at once."""

    def __init__(self, spans: Spans, stored: Mapping[str, Record]) -> None:
        self._spans, self._stored = spans, stored

    async def heard(self, after: Place, until: datetime) -> list[tuple[Place, TraceKey, Heard]]:
        place = Place(RECEIVED, "a")
        return [(place, KEY, heard(0, has_root=True))] if after < place else []

    async def parts(self, trace: TraceKey, until: datetime) -> Parts:
        return Parts([self._spans], 0)

    async def recorded(self, trace_id: str, since: datetime, until: datetime) -> tuple[frozenset[str], frozenset[str]]:
        return frozenset(), frozenset()

    async def published(self, traces: Collection[TraceKey]) -> Mapping[TraceKey, datetime]:
        own = f"{run_id(TRACE)}".encode()
        rows = (record for record in self._stored.values() if record.headers["ce-type"] == Trajectory.TOPIC)
        return {KEY: at(5)} if any(b'"trajectory_id":"' + own in record.body for record in rows) else {}


class Settled(Streams):
    """A broker whose messages are all settled."""

    def __init__(self) -> None:
        pass

    async def settled_until(self, stream: str, consumer: str) -> datetime:
        return at(5)


async def test_collector_that_dies_between_any_two_messages_publishes_all() -> None:
    aside = span(5, 9, prompt=[{"role": "user", "content": "Aside?"}], answers=[ANSWERED])
    verdict = Evaluation(at=RECEIVED, name="relevance", label="pass")
    spans = batch(FIRST, SECOND, aside, msgspec.structs.replace(ROOT_SPAN, evaluations=[verdict]))

    async def tick(stored: dict[str, Record], most: int = -1) -> dict[str, Record]:
        bus = Publishing(stored, most)
        parts = OneTrace(spans, stored)
        await TraceAssembler(bus, Facts.__new__(Facts), parts, Settled(), "c", Inference(), timedelta(days=1)).tick()
        return stored

    whole = await tick({})
    assert len(whole) == 6  # three turns, two trajectories, a thumb
    for most in range(len(whole)):
        stored: dict[str, Record] = {}
        with suppress(BusUnavailable):
            await tick(stored, most)
        assert (await tick(stored)).keys() == whole.keys()
