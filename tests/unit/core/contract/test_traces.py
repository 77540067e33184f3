"""Spans of calls, and the header that continues a trace."""

from __future__ import annotations

import msgspec
import pytest

from ratchet.bus.message import Cause, cause_of
from ratchet.core.contract.traces import BY_SPAN, Trace, read_traceparent
from tests.support.messages import trajectory_end, turn

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
AGENT = Trace(trace_id=TRACE, span_id=SPAN, baggage="tenant=acme")
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (PARENT, True),
        (f" {PARENT[:-2]}00 ", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"01-{TRACE}-{SPAN}-01-what-comes-later", True),
    ],
)
def test_a_valid_header_names_the_span_and_whether_it_is_recorded(text: str, *, sampled: bool) -> None:
    assert read_traceparent(text) == Trace(trace_id=TRACE, span_id=SPAN, sampled=sampled)


@pytest.mark.parametrize(
    "text",
    [
        f"{PARENT}-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        PARENT.upper(),
        "garbage",
    ],
)
def test_an_invalid_header_names_no_span(text: str) -> None:
    assert read_traceparent(text) is None


def test_a_call_is_a_span_of_its_agents_trace_else_of_its_trajectory() -> None:
    call = turn(trace=AGENT)
    assert (call.span.trace_id, call.span.span_id) == (TRACE, call.turn_id.replace("-", "")[16:])
    alone = turn(trace=None).span
    assert (alone.trace_id, alone.span_id) == (call.trajectory_id.replace("-", ""), call.span.span_id)
    reported = turn(trace=AGENT, trajectory_by=BY_SPAN).span
    assert (reported.span_id, reported.baggage) == (SPAN, None)


def test_what_an_agent_does_not_record_stays_so() -> None:
    call = turn(trace=msgspec.structs.replace(AGENT, sampled=False))
    assert read_traceparent(call.traceparent) == call.span
    assert not call.span.sampled


def test_a_cause_continues_chain_and_trace_of_its_own_cause() -> None:
    end = trajectory_end()
    assert cause_of(end) == Cause(event_id=end.event_id, correlation_id=end.event_id)
    before = Cause(event_id="job", correlation_id="request", traceparent=PARENT)
    assert cause_of(end, before) == msgspec.structs.replace(before, event_id=end.event_id)
