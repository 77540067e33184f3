"""From a request of OTLP to records for the broker: read, redacted, checked, sealed. Runs in a recorder process.

A span that cannot be taken is counted by the reason, in words that its sender can act on, and costs no other. Spans of
one trace travel in as few messages as the broker takes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, cast

import msgspec

from ratchet.bus.envelope import HEADER_ROOM, Record, Sealer
from ratchet.core.contract import JsonObject, encode, named_id
from ratchet.core.contract.spans import Span, Spans
from ratchet.core.errors import BadRequest, InvalidMessage, Rejected
from ratchet.core.rules.opt_outs import Ref, refs_of
from ratchet.core.rules.redaction import Redacted, redact
from ratchet.core.rules.texts import user_ref
from ratchet.dialects.telemetry.names import OWN_SCOPE, SWITCH
from ratchet.dialects.telemetry.otlp import LOGS, RawSpan, read_request
from ratchet.dialects.telemetry.reading import is_kept, read_span
from ratchet.dialects.telemetry.span_tree import calls_of, tree_of
from ratchet.gateway.domain.prices import Price

MESSAGE_BYTES = 512 * 1024
"""Of spans that travel together: a batch of the publisher's takes several. A larger span travels alone."""
_IDS = ("span_id", "parent_span_id")
_CHATS = ("prompt", "answers")
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
    whose: list[tuple[str, list[Ref]]] = msgspec.field(default_factory=list[tuple[str, list[Ref]]])
    """Of each record its role, and whom its spans are about."""
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
    taking = _Taking(job, sealer)
    groups: defaultdict[_Origin, list[_Packed]] = defaultdict(list)
    for raw in raws:
        origin = _Origin(job.roles.get(raw.service, job.other_role), raw.trace_id, raw.service)
        packed = taking.packed(raw, origin.role)
        if packed is not None:
            groups[origin].append(packed)
    silent, taken, whose = 0, list[tuple[Record, int]](), list[tuple[str, list[Ref]]]()
    for origin, spans in groups.items():
        parts = list(_in_messages(spans))
        batches = [_batch_of(origin, job.key_id, part) for part in parts]
        silent += calls_of(tree_of(batches), frozenset()).silent
        taken += chain.from_iterable(map(partial(taking.sealed, origin), parts, batches))
        about = sorted({ref for batch in batches for ref in refs_of(batch)})
        whose += [(origin.role, about)] * (len(taken) - len(whose))
    records = [record for record, _ in taken]
    return TakenSpans(records, whose, dict(taking.refused), silent, sum(number for _, number in taken))


class _Origin(NamedTuple):
    """Whose spans travel together."""

    role: str
    trace_id: str
    service: str


class _Packed(NamedTuple):
    """A span, redacted, and its JSON."""

    span: Span
    json: bytes


@dataclass
class _Taking:
    """What becomes of the spans of one request."""

    job: SpansJob
    sealer: Sealer
    refused: Counter[str] = field(default_factory=Counter[str])
    """By the reason."""
    redacted: dict[bytes, Redacted] = field(default_factory=dict[bytes, Redacted])
    """By its JSON, each message of a chat: every call of an agent repeats those before it."""

    def packed(self, raw: RawSpan, role: str) -> _Packed | None:
        """The span as it travels; None for one that is refused, or no part of a run."""
        if reason := _refusal(self.job, raw, role):
            self.refused[reason] += 1
            return None
        if not is_kept(raw):
            return None
        try:
            return self._redacted(_priced(self.job, raw, role))
        except _UNREADABLE as error:
            self.refused[f"cannot be read or redacted ({type(error).__name__})"] += 1
            return None

    def _redacted(self, span: Span) -> _Packed:
        """Raises one of `_UNREADABLE`."""
        whole = msgspec.to_builtins(span)
        try:
            plain = encode(span)
        except UnicodeEncodeError:  # half of a surrogate pair, from a text that spells JSON
            whole = _with_whole_characters(whole)
            span = msgspec.convert(whole, Span)
            plain = encode(span)
        ids = {name: whole.pop(name) for name in _IDS if name in whole}  # sixteen digits may look like a card
        chats = {name: [*map(self._message, whole.pop(name))] for name in _CHATS if name in whole}
        rest = redact(whole)
        counts = Counter(rest.counts)
        for message in chain.from_iterable(chats.values()):
            if message.counts:
                counts.update(message.counts)
        if not counts:
            return _Packed(span, plain)
        texts = {name: [message.value for message in chat] for name, chat in chats.items()}
        safe = msgspec.convert({**rest.value, **texts, **ids, "redactions": dict(counts)}, Span)
        return _Packed(safe, encode(safe))

    def _message(self, message: JsonObject) -> Redacted:
        key = msgspec.json.encode(message)
        known = self.redacted.get(key)
        if known is None:
            known = self.redacted[key] = redact(message)
        return known

    def sealed(self, origin: _Origin, part: Sequence[_Packed], batch: Spans) -> Iterator[tuple[Record, int]]:
        """The records of a message, each with its number of spans; of one that the contract refuses those of its
        halves, so that a span which breaks it costs no other."""
        try:
            record = self.sealer.seal(batch)
        except InvalidMessage as error:
            if len(part) == 1:
                self.refused[f"breaks the contract: {error}"] += 1
                return
            for half in (part[: len(part) // 2], part[len(part) // 2 :]):
                yield from self.sealed(origin, half, _batch_of(origin, self.job.key_id, half))
            return
        if 0 < self.job.largest < record.size + HEADER_ROOM:
            self.refused[f"is larger than the broker takes ({self.job.largest} bytes)"] += len(part)
        else:
            yield record, len(part)


def _refusal(job: SpansJob, raw: RawSpan, role: str) -> str | None:
    """Why a span is not taken, before it is read."""
    if raw.scope == OWN_SCOPE:
        return "is a span of Ratchet's own, which tells what is stored here already"
    if not raw.has_ids:
        return "names no trace and span" if job.signal == LOGS else "has a trace id or span id that OTLP does not allow"
    if role not in job.reported:
        return f"of the role {role}, for which the key lacks the scope `infer:{role}`"
    return None


def _priced(job: SpansJob, raw: RawSpan, role: str) -> Span:
    """What a span says, with its cost. Raises one of `_UNREADABLE`."""
    span = read_span(raw, job.received_at, job.host, partial(user_ref, job.user_key))
    if span.evaluations and role not in job.rated:
        span = msgspec.structs.replace(span, evaluations=None)
    price = job.prices.get(span.provider.model or "") if span.provider else None
    if price is None or span.usage is None:
        return span
    return msgspec.structs.replace(span, cost_usd=price.cost_of(span.usage))


def _with_whole_characters(value: Any) -> Any:
    """`Any`: JSON."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, list):
        return [_with_whole_characters(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {_with_whole_characters(name): _with_whole_characters(inner) for name, inner in members.items()}
    return value


def _batch_of(origin: _Origin, key_id: str | None, part: Sequence[_Packed]) -> Spans:
    """The message of some spans of one trace."""
    content = b",".join(packed.json for packed in part).decode()
    return Spans(
        batch_id=named_id("spans", *origin, key_id or "", f"[{content}]"),
        trace_id=origin.trace_id,
        spans=[packed.span for packed in part],
        role=origin.role,
        service=origin.service,
        key_id=key_id,
    )


def _in_messages(spans: Sequence[_Packed]) -> Iterator[list[_Packed]]:
    """Spans in the parts that travel together."""
    part, size = list[_Packed](), 0
    for packed in spans:
        if part and size + len(packed.json) > MESSAGE_BYTES:
            yield part
            part, size = [], 0
        part.append(packed)
        size += len(packed.json)
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
