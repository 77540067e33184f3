"""From a request of OTLP to records for the broker: read, redacted, checked, sealed. Runs in a recorder process.

A span that cannot be taken is counted by the reason, in words that its sender can act on, and costs no other. Spans of
one trace travel in as few messages as the broker takes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial

import msgspec

from ratchet.bus.envelope import HEADER_ROOM, Record, Sealer
from ratchet.core.contract import named_id
from ratchet.core.contract.spans import Span, Spans
from ratchet.core.errors import BadRequest, InvalidMessage, Rejected
from ratchet.core.rules.redaction import redact
from ratchet.core.rules.texts import user_ref
from ratchet.dialects.telemetry.names import SWITCH
from ratchet.dialects.telemetry.otlp import LOGS, RawSpan, read_request
from ratchet.dialects.telemetry.reading import is_kept, read_span
from ratchet.dialects.telemetry.span_tree import calls_of, tree_of
from ratchet.gateway.domain.prices import Price

MESSAGE_BYTES = 512 * 1024
"""Of spans that travel together: a batch of the publisher's takes several. A larger span travels alone."""
_IDS = ("span_id", "parent_span_id")
_UNREADABLE = (ValueError, TypeError, RecursionError, Rejected, OverflowError, msgspec.MsgspecError)


class SpansJob(msgspec.Struct, frozen=True, array_like=True, tag="spans"):
    """A request of OTLP."""

    signal: str
    content_type: str
    body: bytes
    received_at: datetime
    host: str
    """Under which the gateway was asked."""
    roles: dict[str, str]
    """Service to role."""
    other_role: str
    """That of all other services."""
    reported: list[str]
    """The roles whose runs the caller's key may report."""
    rated: list[str]
    """Those whose runs it may rate."""
    largest: int
    """Bytes of a message that the broker takes."""
    key_id: str | None = None
    user_key: str | None = None
    prices: dict[str, Price] = msgspec.field(default_factory=dict[str, Price])
    """By the model's name."""

    @property
    def size(self) -> int:
        """Bytes that it takes up."""
        return len(self.body)


class TakenSpans(msgspec.Struct, frozen=True, array_like=True):
    """What became of a request of OTLP."""

    records: list[Record] = msgspec.field(default_factory=list[Record])
    refused: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """Spans, and events, that are in no record: by the reason."""
    silent: int = 0
    """Ended model calls that say neither prompt nor answer; an event may still bring them."""
    taken: int = 0
    unreadable: str | None = None
    """Why the body is no request of OTLP."""


def take_spans(job: SpansJob, sealer: Sealer) -> TakenSpans:
    """The records of a request."""
    try:
        raws = read_request(job.signal, job.content_type, job.body)
    except BadRequest as error:
        return TakenSpans(unreadable=str(error))
    refused: Counter[str] = Counter()
    groups: defaultdict[tuple[str, str, str], list[Span]] = defaultdict(list)
    silent = 0
    for raw in raws:
        role = job.roles.get(raw.service, job.other_role)
        if reason := _refusal(job, raw, role):
            refused[reason] += 1
        elif is_kept(raw):
            try:
                span = _readable(job, raw, role)
            except _UNREADABLE as error:
                refused[f"cannot be read or redacted ({type(error).__name__})"] += 1
                continue
            groups[role, raw.trace_id, raw.service].append(span)
    records: list[Record] = []
    taken = 0
    for (role, trace_id, service), spans in groups.items():
        batches = [_batch_of(role, trace_id, service, job.key_id, part) for part in _in_messages(spans)]
        silent += calls_of(tree_of(batches), frozenset()).silent
        for batch in batches:
            try:
                record = sealer.seal(batch)
            except InvalidMessage as error:
                refused[f"breaks the contract at {error.path}"] += len(batch.spans)
                continue
            if 0 < job.largest < record.size + HEADER_ROOM:
                refused[f"is larger than the broker takes ({job.largest} bytes)"] += len(batch.spans)
            else:
                records.append(record)
                taken += len(batch.spans)
    return TakenSpans(records, dict(refused), silent, taken)


def _refusal(job: SpansJob, raw: RawSpan, role: str) -> str | None:
    """Why a span is not taken, before it is read."""
    if not raw.has_ids:
        return "names no trace and span" if job.signal == LOGS else "has a trace id or span id that OTLP does not allow"
    if role not in job.reported:
        return f"of the role {role}, for which the key lacks the scope `infer:{role}`"
    return None


def _readable(job: SpansJob, raw: RawSpan, role: str) -> Span:
    """The span, redacted, with its cost. Raises one of `_UNREADABLE`."""
    span = read_span(raw, job.received_at, job.host, partial(user_ref, job.user_key))
    if span.evaluations and role not in job.rated:
        span = msgspec.structs.replace(span, evaluations=None)
    price = job.prices.get(span.provider.model or "") if span.provider else None
    if price is not None and span.usage is not None:
        span = msgspec.structs.replace(span, cost_usd=price.cost_of(span.usage))
    whole = msgspec.to_builtins(span)
    ids = {name: whole.pop(name) for name in _IDS if name in whole}  # sixteen digits may look like a card
    redacted = redact(whole)
    if not redacted.counts:
        return span
    return msgspec.convert({**redacted.value, **ids, "redactions": redacted.counts}, Span)


def _batch_of(role: str, trace_id: str, service: str, key_id: str | None, spans: list[Span]) -> Spans:
    """The message of some spans of one trace."""
    content = msgspec.json.encode(spans).decode()
    return Spans(
        batch_id=named_id("spans", role, trace_id, service, key_id or "", content),
        trace_id=trace_id,
        spans=spans,
        role=role,
        service=service,
        key_id=key_id,
    )


def _in_messages(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """Spans in the parts that travel together."""
    part, size = list[Span](), 0
    for span in spans:
        length = len(msgspec.json.encode(span))
        if part and size + length > MESSAGE_BYTES:
            yield part
            part, size = [], 0
        part.append(span)
        size += length
    if part:
        yield part


def words_of(refused: Mapping[str, int], silent: int) -> str:
    """The words for the sender: what was refused and why, and which switch it lacks."""
    sentences = [f"{number} refused: {reason}" for reason, number in refused.items()]
    if silent:
        sentences.append(
            f"{silent} model calls came without content; unless it comes as events to /v1/logs, set {SWITCH}"
            " (span_only, or true in older instrumentations)"
        )
    return "; ".join(sentences)
