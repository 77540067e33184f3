"""Spans put together from parts that come in any order, more than once, and from senders that cannot be trusted."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

from ratchet.core.contract import Spans, named_id
from ratchet.core.contract.spans import AGENT, INFERENCE, OTHER, Span, SpanMessage
from ratchet.core.contract.turn import Provider, Usage
from ratchet.dialects.telemetry.span_tree import MOST_EVENTS, calls_of, exchange_of, tree_of
from tests.support.telemetry import RECEIVED

TRACE = "1" * 32
EXCHANGE: dict[str, Any] = {
    "prompt": [{"role": "user", "content": "hi"}],
    "answers": [{"role": "assistant", "content": "hello"}],
}


def span(number: int, parent: int | None = None, kind: str = OTHER, **members: Any) -> Span:
    at = RECEIVED + timedelta(seconds=number)
    above = f"{parent:016x}" if parent is not None else None
    given = {"started_at": at, "ended_at": at, "name": f"span {number}", **members}
    return Span(span_id=f"{number:016x}", parent_span_id=above, kind=kind, **given)


def batch(*spans: Span, service: str = "shop") -> Spans:
    return Spans(batch_id=named_id("batch"), trace_id=TRACE, spans=list(spans), service=service)


def key(number: int, service: str = "shop") -> tuple[str, str]:
    return service, f"{number:016x}"


def test_parts_of_a_span_add_up_in_any_order() -> None:
    whole = span(1, kind=INFERENCE, usage=Usage(prompt=3, completion=4))
    event = Span(span_id=whole.span_id, kind=INFERENCE, **EXCHANGE)
    for parts in ([whole, event], [event, whole], [event, event, whole]):
        (made,) = tree_of([batch(part) for part in parts]).spans.values()
        assert (made.usage, made.prompt, made.name) == (whole.usage, EXCHANGE["prompt"], "span 1")


def test_event_that_comes_twice_counts_once() -> None:
    event = Span(span_id="a" * 16, messages=[SpanMessage(at=RECEIVED, message={"role": "user", "content": "hi"})])
    (made,) = tree_of([batch(event), batch(event)]).spans.values()
    assert exchange_of(made).prompt == [{"role": "user", "content": "hi"}]


def test_parts_of_a_span_with_many_events_are_joined_in_linear_time() -> None:
    events = [SpanMessage(at=RECEIVED, message={"role": "user", "content": str(n)}) for n in range(50_000)]
    (made,) = tree_of([batch(Span(span_id="a" * 16, messages=part)) for part in (events, events[::-1])]).spans.values()
    assert made.messages == events[:MOST_EVENTS]


def test_messages_stand_in_the_order_of_their_times() -> None:
    def part_with(second: int, role: str, *, is_answer: bool = False) -> Span:
        at = RECEIVED + timedelta(seconds=second)
        event = SpanMessage(at=at, message={"role": role, "content": str(second)}, is_answer=is_answer)
        return Span(span_id="a" * 16, messages=[event])

    parts = [part_with(3, "assistant", is_answer=True), part_with(1, "system"), part_with(2, "user")]
    (made,) = tree_of([batch(part) for part in parts]).spans.values()
    assert [message["content"] for message in exchange_of(made).prompt] == ["1", "2"]
    assert [message["content"] for message in exchange_of(made).answers] == ["3"]


def test_span_id_that_is_used_twice_is_counted_and_the_first_counts() -> None:
    tree = tree_of([batch(span(1, name="first")), batch(span(1, name="second"))])
    assert (tree.spans[key(1)].name, tree.conflicts) == ("first", 1)


def test_other_service_has_spans_of_its_own_under_the_same_id() -> None:
    tree = tree_of([batch(span(1, name="ours")), batch(span(1, name="theirs"), service="other")])
    assert [each.name for each in tree.spans.values()] == ["ours", "theirs"]


def test_evaluator_tells_of_another_services_span() -> None:
    tree = tree_of([batch(Span(span_id=f"{1:016x}", agent="judge"), service="evaluator"), batch(span(1))])
    assert [(each.name, each.agent) for each in tree.spans.values()] == [("span 1", "judge")]


def test_circles_and_missing_parents_end() -> None:
    tree = tree_of([batch(span(1, parent=2), span(2, parent=1), span(3, parent=3), span(4, parent=99))])
    assert set(tree.enclosing(lambda each: each.kind == AGENT).values()) == {None}


def test_ten_thousand_levels_are_walked_once() -> None:
    deep = [
        span(number, parent=number - 1 or None, kind=AGENT if number == 1 else OTHER) for number in range(1, 10_001)
    ]
    around = tree_of([batch(*deep)]).enclosing(lambda each: each.kind == AGENT)
    assert around[key(10_000)] == key(1)
    assert around[key(1)] is None


def test_call_that_two_instrumentations_report_counts_once() -> None:
    framework = span(1, kind=INFERENCE, **EXCHANGE)
    provider = span(2, parent=1, kind=INFERENCE, usage=Usage(prompt=3, completion=4))
    calls = calls_of(tree_of([batch(framework, provider)]), set())
    assert (list(calls.whole), calls.silent) == ([key(1)], 0)
    assert calls.whole[key(1)].usage == provider.usage
    both = calls_of(tree_of([batch(framework, span(2, parent=1, kind=INFERENCE, **EXCHANGE))]), set())
    assert list(both.whole) == [key(2)]


def test_call_that_two_spans_side_by_side_report_counts_once() -> None:
    answer = Provider(id="chatcmpl-1")
    spans = [span(number, kind=INFERENCE, provider=answer, **EXCHANGE) for number in (1, 2)]
    silent = span(3, kind=INFERENCE, provider=answer)
    calls = calls_of(tree_of([batch(*spans, silent)]), set())
    assert (list(calls.whole), calls.silent) == ([key(1)], 0)


def test_agent_without_calls_of_its_own_counts_by_its_content() -> None:
    outer, inner = span(1, kind=AGENT, **EXCHANGE), span(2, parent=1, kind=AGENT, **EXCHANGE)
    assert list(calls_of(tree_of([batch(outer, inner)]), set()).whole) == [key(2)]
    call = span(3, parent=2, kind=INFERENCE, **EXCHANGE)
    assert list(calls_of(tree_of([batch(outer, inner, call)]), set()).whole) == [key(3)]


def test_calls_that_the_gateway_has_recorded_are_left_out() -> None:
    call, http = span(1, kind=INFERENCE, **EXCHANGE), span(2, parent=1)
    tree = tree_of([batch(call, http)])
    for marked in ({key(1)}, {key(2)}):
        calls = calls_of(tree, marked)
        assert (dict(calls.whole), calls.recorded) == ({}, 1)


def test_order_and_repetition_of_parts_do_not_matter() -> None:
    spans = [span(1, kind=AGENT), *(span(number, parent=1, kind=INFERENCE, **EXCHANGE) for number in range(2, 8))]
    events = [Span(span_id=each.span_id, agent=f"agent {each.span_id}") for each in spans]
    expected = tree_of([batch(each) for each in [*spans, *events]])
    random = Random(1)
    for _ in range(25):
        parts = random.choices([*spans, *events], k=30) + spans + events
        random.shuffle(parts)
        made = tree_of([batch(part) for part in parts])
        assert {name: made.spans[name] for name in expected.spans} == expected.spans
        assert (dict(made.parents), made.conflicts) == (dict(expected.parents), 0)
