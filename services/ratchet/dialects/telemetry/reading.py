"""A span as it came, in any dialect, as what it says of a model call, a tool or an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from ratchet.core.contract.spans import INFERENCE, OTHER, TOOL, Evaluation, Span, SpanMessage
from ratchet.core.contract.turn import Provider, Sampling, Usage
from ratchet.dialects.foreign_values import list_of, number_of, text_or_none
from ratchet.dialects.telemetry.contents import content_of, fields_of_event, message_of_event
from ratchet.dialects.telemetry.names import kind_of, number_in, sampling_of, text_of, usage_of
from ratchet.dialects.telemetry.otlp import Attributes, Event, RawSpan

DETAILS = "gen_ai.client.inference.operation.details"
"""The event that holds the attributes of a model call, content included."""
EVALUATION = "gen_ai.evaluation.result"
PENDING = "pending_span"
"""`logfire.span_type` of what only announces a span."""
OLDEST, NEWEST = timedelta(days=30), timedelta(hours=1)
"""A time that lies further from the moment at which a span came is of a clock that is wrong: that moment counts."""
NAME = 200
"""Characters of a span's name that are kept."""
MOST = 1e9
"""No call costs more dollars, or waits more seconds or milliseconds: what says so is wrong."""


def is_kept(raw: RawSpan) -> bool:
    """Whether it may become part of a run: an ended span, or an event that says something of one."""
    if raw.attributes.get("logfire.span_type") == PENDING:
        return False
    return raw.end_ns > 0 or any(map(_is_of_a_call, raw.events))


def read_span(raw: RawSpan, received_at: datetime, host: str, user_ref: Callable[[str], str | None]) -> Span:
    """What a span says. `host`: under which this server was asked, a call to which is no further call; `user_ref`: the
    hash of a user's name. Raises a `ValueError` that says what is wrong with it."""
    if not raw.attributes and not raw.events:
        return _bare(raw, received_at)
    attributes = raw.attributes
    for event in raw.events:
        if event.name == DETAILS:
            attributes = {**fields_of_event(event), **attributes}
    kind, content, user = kind_of(attributes), content_of(attributes), text_of(attributes, "user")
    messages = list(_messages(raw, received_at))
    usage = usage_of(attributes) if kind == INFERENCE else {}
    bare = _bare(raw, received_at)
    return msgspec.structs.replace(
        bare,
        kind=kind or (INFERENCE if messages else bare.kind),
        error=raw.error or text_of(attributes, "error"),
        agent=text_of(attributes, "agent"),
        session=text_of(attributes, "session"),
        user_ref=user_ref(user) if user else None,
        provider=_provider(attributes) if kind == INFERENCE else None,
        prompt=list(content.prompt) or None,
        answers=list(content.answers) or None,
        messages=messages or None,
        tools=list(content.tools) or None,
        sampling=_sampling(attributes),
        usage=Usage(**{"prompt": 0, "completion": 0, **usage}) if usage else None,
        cost_usd=_amount(number_in(attributes, "cost_usd")) if kind == INFERENCE else None,
        finish_reason=_finish_reason(attributes),
        first_token_ms=_first_token_ms(attributes),
        tool_name=text_of(attributes, "tool_name") or (raw.name[:NAME] if kind == TOOL else None),
        tool_call_id=text_of(attributes, "tool_call_id"),
        tool_output=content.tool_output if kind == TOOL else None,
        is_recorded=kind == INFERENCE and host != "" and _address(attributes) == host,
        evaluations=list(_evaluations(raw, received_at)) or None,
    )


def _bare(raw: RawSpan, received_at: datetime) -> Span:
    """What every span says: its place, its times, and whether it failed."""
    ended_at = _instant(raw.end_ns, received_at)
    return Span(
        span_id=raw.span_id,
        parent_span_id=raw.parent_span_id if raw.parent_span_id not in ("", raw.span_id) else None,
        name=raw.name[:NAME],
        kind=OTHER if ended_at else None,
        started_at=_instant(raw.start_ns, received_at) or ended_at,
        ended_at=ended_at,
        is_entry=raw.is_entry,
        error=raw.error,
    )


def _is_of_a_call(event: Event) -> bool:
    return event.name in (DETAILS, EVALUATION) or message_of_event(event.name, {}) is not None


def _messages(raw: RawSpan, received_at: datetime) -> Iterator[SpanMessage]:
    for event in raw.events:
        made = message_of_event(event.name, fields_of_event(event))
        if made is not None:
            yield SpanMessage(at=_instant(event.at_ns, received_at) or received_at, message=made[0], is_answer=made[1])


def _evaluations(raw: RawSpan, received_at: datetime) -> Iterator[Evaluation]:
    for event in raw.events:
        if event.name != EVALUATION:
            continue
        fields = fields_of_event(event)
        yield Evaluation(
            at=_instant(event.at_ns, received_at) or received_at,
            name=text_or_none(fields.get("gen_ai.evaluation.name")) or "evaluation",
            value=number_of(fields.get("gen_ai.evaluation.score.value")),
            label=text_or_none(fields.get("gen_ai.evaluation.score.label")),
            explanation=text_or_none(fields.get("gen_ai.evaluation.explanation")),
            response_id=text_or_none(fields.get("gen_ai.response.id")),
        )


def _instant(ns: int, received_at: datetime) -> datetime | None:
    """An instant in nanoseconds since 1970; None for none."""
    if ns <= 0:
        return None
    at = datetime.fromtimestamp(ns // 1000 / 1e6, UTC) if ns < 2**62 else received_at
    return at if received_at - OLDEST <= at <= received_at + NEWEST else received_at


def _provider(attributes: Attributes) -> Provider | None:
    model, answer = text_of(attributes, "model"), text_of(attributes, "response_id")
    return Provider(id=answer, model=model) if model or answer else None


def _sampling(attributes: Attributes) -> Sampling | None:
    """None where nothing is known, or what is known is out of every range."""
    given: dict[str, Any] = dict(sampling_of(attributes))
    given |= {name: int(given[name]) for name in ("top_k", "max_tokens", "seed") if name in given}
    try:
        return msgspec.convert(given, Sampling) if given else None
    except msgspec.ValidationError:
        return None


def _finish_reason(attributes: Attributes) -> str | None:
    reasons = list_of(attributes.get("gen_ai.response.finish_reasons"))
    return next((reason for reason in reasons if isinstance(reason, str)), None) or text_of(attributes, "finish_reason")


def _first_token_ms(attributes: Attributes) -> float | None:
    seconds = _amount(number_in(attributes, "first_token_s"))
    return 1000 * seconds if seconds is not None else _amount(number_in(attributes, "first_token_ms"))


def _amount(number: float | None) -> float | None:
    """None for what is no amount; sums of amounts are numbers."""
    return number if number is not None and 0 <= number <= MOST else None


def _address(attributes: Attributes) -> str:
    """The server that a call went to, as `Host` names it."""
    address, port = attributes.get("server.address"), attributes.get("server.port")
    return f"{address}:{port}" if address and port else str(address or "")
