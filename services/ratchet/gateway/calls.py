"""An agent's call as it begins: what it asks for, its trajectory, and who answers it."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
import uuid_utils

from ratchet.core.contract.erasure import AGENT, SESSION, USER
from ratchet.core.contract.traces import TRACEPARENT, Trace, read_traceparent, span_id_of
from ratchet.core.errors import BadRequest, NotFound
from ratchet.core.rules.access import Caller, KeyScope
from ratchet.core.rules.arms import PINNED
from ratchet.core.rules.chat.links import Digested
from ratchet.core.rules.opt_outs import Ref
from ratchet.core.rules.texts import NAME_CHARACTERS, user_ref
from ratchet.core.service.asgi import Request
from ratchet.dialects.api_dialect import ApiDialect
from ratchet.dialects.requests import ADAPTER_ID, CallRequest, end_user_of, read_fields, value_of
from ratchet.dialects.responses.answers import RESPONSE_PREFIX
from ratchet.dialects.responses.dialect import RESPONSES
from ratchet.gateway.call_router import CallRouter, Choice
from ratchet.gateway.continuing import Continuing
from ratchet.gateway.domain.identity import (
    NAMING_MEMBERS,
    Asked,
    Identity,
    Names,
    Recognised,
    names_of,
    subject_ref,
)
from ratchet.gateway.domain.routing import Arm, Arms, claim_of
from ratchet.gateway.domain.turns import TurnHeader
from ratchet.gateway.models import Models, Pinned
from ratchet.gateway.peer_sync import PeerSync
from ratchet.gateway.unrecorded import RECORD, Unrecorded, is_off

T = TypeVar("T")
TRAJECTORY_HEADER, SESSION_HEADER, AGENT_HEADER = b"x-ratchet-trajectory", b"x-ratchet-session", b"x-ratchet-agent"
BUNDLE = b"x-ratchet-bundle"
"""Digest of the policy whose bundle the agent has asked for, and has composed this call by."""
ARM = b"x-ratchet-arm"
"""Of an agent, with the value `pinned`: an evaluation, which stays out of statistics and training whatever model it
names. Of the gateway: the arm, for the agent, and for what routes between gateway and several pools of an engine."""
BAGGAGE_CHARACTERS = 8192
"""Longest baggage that a turn records: the standard asks no platform to carry more."""
_TRACEPARENT = TRACEPARENT.encode()
PASSED = frozenset(
    {
        b"anthropic-beta",
        b"anthropic-version",
        b"baggage",
        b"idempotency-key",
        b"openai-beta",
        b"openai-organization",
        b"openai-project",
        _TRACEPARENT,
        b"tracestate",
        b"x-request-id",
    }
)
"""Headers of an agent that go on to the engine: traces, and those that providers' APIs define."""


LARGE = 64 * 1024
"""Bytes of a body up to which reading takes less than a few milliseconds, whatever it holds."""


class Read(NamedTuple):
    """A request, checked."""

    call: CallRequest
    naming: Mapping[str, Any]
    """Its members that may name its trajectory. `Any`: agents write what they like."""


class RequestReader:
    """Reads the bodies of calls: small ones at once, large ones in a thread, so that no other call waits for them.

    Python runs one thread at a time, and msgspec never lets go in the midst of a value: a large value is therefore read
    in steps (`dialects.requests`), between which the event loop has its turn. One thread reads all large ones: several
    would leave the loop a smaller share.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "reading")

    async def read(self, dialect: ApiDialect, body: bytes, *, named: bool) -> Read:
        """The request that a body is; `named`: its headers name its trajectory. Raises `BadRequest`."""
        with_digests = len(body) > LARGE and not named
        return await self.apply(partial(_read_with_digests if with_digests else _read, dialect), body)

    async def apply(self, read: Callable[[bytes], T], body: bytes) -> T:
        """What `read` makes of a body; it may raise."""
        if len(body) <= LARGE:
            return read(body)
        return await asyncio.get_running_loop().run_in_executor(self._thread, read, body)

    def close(self) -> None:
        """Read no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _read(dialect: ApiDialect, body: bytes) -> Read:
    call = dialect.read(read_fields(body))
    return Read(call, {name: value_of(call.fields, name) for name in NAMING_MEMBERS if name in call.fields})


def _read_with_digests(dialect: ApiDialect, body: bytes) -> Read:
    """The digests of its messages are what recognises its trajectory."""
    call, naming = _read(dialect, body)
    return Read(msgspec.structs.replace(call, messages=Digested(call.messages)), naming)


class Labels(NamedTuple):
    """What the headers of a call say of its turn."""

    session: str | None
    agent: str | None
    pinned: bool
    """The call is an evaluation."""
    off: bool
    """Nothing of its trajectory is to be recorded."""

    def refs(self, user_ref: str | None) -> list[Ref]:
        """Whom the call is about."""
        named = ((USER, user_ref), (SESSION, self.session), (AGENT, self.agent))
        return [(kind, ref) for kind, ref in named if ref]


class AskedModel(NamedTuple):
    """The model of a call."""

    name: str
    """As the call names it."""
    named_by: str
    """The member that names it."""
    for_upstreams: str
    """The name for upstreams that have the asked model answer."""
    exact: bool = False
    """It must be a role or a version of one."""
    pinned: bool = False
    """The call is an evaluation of what serves now."""


class Drawn(NamedTuple):
    """Whose call it is, and who answers it."""

    recognised: Recognised
    arm: Arm
    choice: Choice


@dataclass(slots=True)
class Call:
    """One call on its way; choice and header change when a fallback takes over."""

    dialect: ApiDialect
    request: CallRequest
    sent: bytes
    """The request as the agent sent it."""
    arm: Arm
    recognised: Recognised
    """Its trajectory, and by what the gateway recognised that."""
    choice: Choice
    header: TurnHeader
    started: float
    owner: str
    """Who may continue its response."""
    composed_by: str | None = None
    """Digest of the policy by whose bundle the agent says that it composed the call."""
    passed: CallRequest | None = None
    """The request as filters let it pass, where they change it."""
    asked: CallRequest | None = None
    """The request as the engine gets it, where filters or the policy change it."""
    replaced: bool = False
    """Filters have changed the answer: its tokens spell another one."""
    cache_key: bytes | None = None
    """Under which the cache keeps its answer; None where the answer depends on chance."""
    cached: bool = False
    """The cache has answered."""
    recorded: bool = False
    """It has become a turn."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of its answer: which turn the call is, if it becomes one, and who answered."""

        headers = [
            (TRAJECTORY_HEADER, self.header.trajectory_id.encode()),
            (b"x-ratchet-trajectory-by", self.recognised.by.encode()),
            (RECORD, b"off") if self.arm.unrecorded else (b"x-ratchet-turn", self.header.turn_id.encode()),
            (b"x-ratchet-policy", self.choice.assignment.policy.name.encode("latin-1", "replace")),
            (ARM, self.header.policy.arm.encode()),
        ]
        return [*headers, (b"x-ratchet-cache", b"hit")] if self.cached else headers


@dataclass(frozen=True)
class CallOpener:
    """Reads what agents send, recognises the trajectory, and chooses who answers."""

    reader: RequestReader
    models: Models
    router: CallRouter
    continuing: Continuing
    arms: Arms
    identity: Identity
    peer_sync: PeerSync
    user_key: str | None
    """Key of the hash that turns the end user of a call into its turn's `user_ref`; without it no turn names one."""
    subject_key: bytes
    """Key of the hash of a trajectory's subject, the same in all gateways; empty where they share no secret."""
    now: Callable[[], datetime]
    unrecorded: Unrecorded
    continues_traces: bool = False
    """Engines continue a trace from the call's own span, not from the agent's: that span is exported."""

    async def open(self, dialect: ApiDialect, request: Request, trajectory: str | None) -> Call:
        """Read the request and choose who answers. A call that no engine can answer leaves no trace here.

        Raises `BadRequest`, and what `draw` does.
        """
        labels = labels_of(request)
        names, owner = names_of(request.header, trajectory), request.caller.key_id or ""
        (asked, naming), sent = await self._read(dialect, request, names, owner)
        asking = Asked(scope_of(request), names, naming, request.body, lambda: asked.messages, owner)
        exact, at = asked.named_by == ADAPTER_ID, self.now()
        model = AskedModel(asked.model, asked.named_by, asked.asked_model, exact=exact, pinned=labels.pinned)
        subject = partial(_subject_ref, asking, asked, labels.session, self.subject_key)
        user = user_ref(self.user_key, end_user_of(asked)) if self.user_key is not None else None
        drawn = await self.draw(model, asking, request.caller, subject, labels.refs(user), off=labels.off)
        if owner and request.caller.allows(KeyScope.FEEDBACK, drawn.arm.role):
            drawn.arm.called_by(owner)
        header = self._header(request, labels, drawn, at, user)
        call = msgspec.structs.replace(
            asked,
            headers=passed_headers(request, header if self.continues_traces else None),
            query=request.query,
            answer_id=RESPONSE_PREFIX + secrets.token_hex(20),
            at=int(at.timestamp()),
            trajectory_id=drawn.arm.trajectory_id,
        )
        composed_by, began = request.header(BUNDLE), time.perf_counter()
        return Call(dialect, call, sent, drawn.arm, drawn.recognised, drawn.choice, header, began, owner, composed_by)

    async def draw(
        self,
        model: AskedModel,
        asking: Asked,
        caller: Caller,
        subject_ref: Callable[[], str | None],
        refs: Sequence[Ref],
        *,
        off: bool,
    ) -> Drawn:
        """Recognise the trajectory and choose who answers its call. `subject_ref`: the hash of whose trajectory it is;
        `refs`: whom it is about; `off`: its agent wants nothing of it recorded.

        Raises `NotFound`, `Forbidden` for what the caller's key does not allow, or `Unavailable` when the gateway
        cannot look up a named version.
        """
        try:
            named, version = await self.models.resolve(model.name, caller, exact=model.exact, evaluates=model.pinned)
            recognised = await self.peer_sync.recognise(asking)
            arm = self.arms.open(recognised.trajectory_id, named.role)
            self.unrecorded.heed(arm, refs, off=off)
            await self.router.prepare(named.role, version)
            choice = self._assign(recognised, arm, version, model, subject_ref)
        except NotFound as error:
            raise NotFound(str(error), param=model.named_by, code="model_not_found") from error
        return Drawn(recognised, arm, choice)

    async def _read(self, dialect: ApiDialect, request: Request, names: Names, owner: str) -> tuple[Read, bytes]:
        """The request, and its body; both with what it continues, where that is a response that is kept here."""
        named = bool(names.header or names.path or names.run)
        read = await self.reader.read(dialect, request.body, named=named)
        if dialect is not RESPONSES:
            return read, request.body
        continued = await self.continuing.opened(read.call, owner)
        sent = request.body if continued.fields is read.call.fields else msgspec.json.encode(continued.fields)
        return Read(continued, read.naming), sent

    def _header(self, request: Request, labels: Labels, drawn: Drawn, at: datetime, user_ref: str | None) -> TurnHeader:
        recognised, arm, choice = drawn
        return TurnHeader(
            turn_id=new_id(),
            trajectory_id=recognised.trajectory_id,
            role=arm.role,
            at=at,
            policy=claim_of(arm.role, choice.assignment, mixed=arm.mixed),
            engine=choice.engine.info,
            turns=arm.turns,
            session_id=labels.session,
            agent_id=labels.agent,
            user_ref=user_ref,
            trajectory_by=recognised.by,
            trajectory_name=recognised.name,
            parent_hint=recognised.parent_turn_id,
            key_id=request.caller.key_id,
            trace=_trace_of(request),
        )

    def _assign(
        self,
        recognised: Recognised,
        arm: Arm,
        version: Pinned | None,
        model: AskedModel,
        subject_ref: Callable[[], str | None],
    ) -> Choice:
        """Who answers. Raises `NotFound`; then the call is over, and its retry may come."""
        try:
            return self.router.assign(arm, version, model.for_upstreams, subject_ref=subject_ref, pinned=model.pinned)
        except NotFound:
            self.identity.failed(recognised)
            raise


def _subject_ref(asking: Asked, asked: CallRequest, session: str | None, secret: bytes) -> str | None:
    """The hash of whose trajectory a call begins, if it says so; `session`: the label of its headers."""
    return subject_ref(asking, end_user_of(asked), session, secret)


def scope_of(request: Request) -> str:
    """What a gateway's memory of answers counts for: the key that came with the request."""
    if request.caller.key_id is not None:
        return request.caller.key_id
    key = request.headers.get(b"authorization", b"")
    return hashlib.blake2b(key, digest_size=16).hexdigest() if key else ""


def labels_of(request: Request) -> Labels:
    """What its headers say of a call. Raises `BadRequest`."""
    session, agent = _label(request, SESSION_HEADER), _label(request, AGENT_HEADER)
    return Labels(session, agent, pinned=_is_pinned(request), off=is_off(request))


def _label(request: Request, name: bytes) -> str | None:
    """A header that each turn of the agent repeats. Raises `BadRequest` for one that is too long for that."""
    value = request.header(name)
    if value is not None and len(value) > NAME_CHARACTERS:
        message = f"the header {name.decode()} has more than {NAME_CHARACTERS} characters"
        raise BadRequest(message, param=name.decode())
    return value


def _is_pinned(request: Request) -> bool:
    """Whether the agent asks for an evaluation. Raises `BadRequest` for another arm, which no agent chooses."""
    arm = request.header(ARM)
    if arm not in (None, PINNED):
        raise BadRequest(f"the header {ARM.decode()} takes `{PINNED}` alone", param=ARM.decode())
    return arm is not None


def _trace_of(request: Request) -> Trace | None:
    """The agent's OpenTelemetry context, unless it is invalid; without a baggage that is longer than the standard's."""
    traced, baggage = read_traceparent(request.header(_TRACEPARENT) or ""), request.header(b"baggage")
    if traced is None or baggage is None or len(baggage) > BAGGAGE_CHARACTERS:
        return traced
    return msgspec.structs.replace(traced, baggage=baggage)


def passed_headers(request: Request, continued: TurnHeader | None = None) -> list[tuple[bytes, bytes]]:
    """The agent's headers that go on to the engine: traces, and what the provider's API defines.

    `continued`: the call whose span takes the place of the agent's.
    """
    passed = [(name, value) for name, value in request.headers.items() if name in PASSED]
    if continued is None or continued.trace is None:
        return passed
    own = msgspec.structs.replace(continued.trace, span_id=span_id_of(continued.turn_id)).traceparent.encode()
    return [(name, own if name == _TRACEPARENT else value) for name, value in passed]


def new_id() -> str:
    """A UUIDv7: its time decides which canary weight was in force."""
    return str(uuid_utils.uuid7())
