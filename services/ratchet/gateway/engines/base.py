"""What the gateway needs of an engine, and the ways in which one fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol, cast

import msgspec
import structlog

from ratchet.bus.message import decode
from ratchet.core.contract.state import ServedPolicy
from ratchet.core.contract.turn import BROKE, UNSERVED, EngineInfo
from ratchet.core.rules.engines import POLICY_NOT_LOADED, POLICY_REFUSED
from ratchet.core.service.asgi import Headers
from ratchet.core.service.problems import HttpError
from ratchet.dialects.answers import AnswerEnvelope
from ratchet.dialects.api_dialect import ApiDialect
from ratchet.dialects.requests import Body, CallRequest, Fields
from ratchet.dialects.streams import UNREADABLE, chunk_of
from ratchet.gateway.domain.refusals import sentence_of

log = structlog.get_logger()

BUSY = frozenset({408, 429})
"""Out of time, or too many calls: another engine may have room."""
WRONG_KEY = frozenset({401, 403})
"""An engine that does not let the gateway in."""
NOT_NOW = frozenset({425, 429, 503})
"""An engine that computes nothing of the call for now: no room, or no way to the object store."""
INVALID = "engine_invalid"
"""Code of an answer that is none of its API."""
_RELAYED = (b"x-request-id", b"request-id", b"retry-after", b"retry-after-ms", b"x-should-retry", b"openai-version")
_RELAYED_PREFIXES = (b"x-ratelimit-", b"anthropic-ratelimit-", b"openai-processing-")
"""Headers of an engine's answer that agents get, as the engine sent them."""


class Reply(msgspec.Struct, frozen=True):
    """A whole answer of an engine, whatever its status."""

    status: int
    raw: bytes
    """The body as it came."""
    headers: Headers = ()
    replica: str | None = None
    """Which one of the engine's answered."""
    envelope: AnswerEnvelope | None = None
    """Its answer, where the way to the engine has read it."""

    @property
    def body(self) -> Any:
        """The body, decoded; None when it is not JSON. `Any`: it comes from another process."""
        try:
            return decode(self.raw)
        except msgspec.DecodeError:
            return None

    @property
    def error(self) -> Body:
        """The members of its error, in OpenAI's shape, Ollama's, or vLLM's older one."""
        body = self.body
        error: Any = cast("Body", body).get("error", body) if isinstance(body, dict) else None
        return cast("Body", error) if isinstance(error, dict) else {"message": error}

    @property
    def reason(self) -> str:
        """The engine's own words; without any, its status."""
        message = self.error.get("message")
        return message if isinstance(message, str) and message else f"the engine answered {self.status}"

    def member(self, name: str) -> str | None:
        """A text of its error: `type`, `code` or `param`."""
        value = self.error.get(name)
        return value if isinstance(value, str) else None


class Events(Protocol):
    """The events of a stream as they come, without their blank lines, those that came together at a time.

    Closing it ends the engine's work. Raises `EngineFailed` where it breaks off.
    """

    def __aiter__(self) -> AsyncIterator[list[bytes]]: ...

    def __anext__(self) -> Awaitable[list[bytes]]: ...

    def aclose(self) -> Awaitable[None]: ...


class EventReply(msgspec.Struct, frozen=True):
    """A stream that an engine has begun to answer with (status 200)."""

    events: Events
    headers: Headers = ()
    replica: str | None = None
    """Which one of the engine's answers."""
    over: Callable[[EngineFailed | None], None] = lambda _: None
    """Takes what became of the stream, once its reader knows; only the first word counts."""


class EngineError(HttpError):
    """An engine did not answer the call; with its own words, where it has said any."""

    def __init__(self, status: int, message: str, *, code: str | None = None, reply: Reply | None = None) -> None:
        kind, param = (reply.member("type"), reply.member("param")) if reply is not None else (None, None)
        super().__init__(status, message, kind=kind, code=code, param=param)
        self.relayed: tuple[str, bytes] | None = None
        """The name of the dialect in which the engine was asked, and its body: agents that speak it get it as it is."""
        self.headers = relayed_headers(reply.headers) if reply is not None else ()
        self.replica: str | None = None
        """Which one of the engine's it was, where that is known."""


class EngineFailed(EngineError):
    """The engine's fault, not the agent's: the gateway may ask another one."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None,
        reply: Reply | None = None,
        unreachable: bool = False,
        broken_off: bool = False,
    ) -> None:
        super().__init__(status, message, code=code, reply=reply)
        self.fault: str | None = UNSERVED if unreachable else BROKE
        """As turns name it; None where it is no engine's."""
        self.unreachable = unreachable
        """Nothing listens at the address: another policy of the same engine cannot answer either."""
        self.broken_off = broken_off
        """The connection ended before the answer did."""
        self.lacks_model = False
        """The server does not have the model that it was asked for."""


class NotServed(EngineFailed):
    """The engine has computed nothing of an answer: it has no room, cannot serve the policy, or refuses the gateway."""

    def __init__(self, status: int, message: str, *, code: str | None, reply: Reply | None = None) -> None:
        super().__init__(status, message, code=code, reply=reply)
        self.fault = UNSERVED


class PolicyUnfit(EngineFailed):
    """The policy cannot answer this call, whatever engine is asked: stable may, and nothing answers in stable's place.

    It counts as a failure of the policy.
    """

    def __init__(self, status: int, message: str, *, code: str | None) -> None:
        super().__init__(status, message, code=code)
        self.fault = None


class CallRefused(EngineError):
    """The policies' engine refuses the call, say because its context is too long.

    The agent gets the engine's words, and the gateway asks no other engine. The turn counts as a failure of the policy:
    the policy's own answers may have made the context too long.
    """


def relayed_headers(headers: Headers) -> Headers:
    """Those that an agent's SDK understands: how long to wait, and the engine's name for the call."""
    named = [(name.lower(), value) for name, value in headers]  # servers spell them as they like
    return [(name, value) for name, value in named if name in _RELAYED or name.startswith(_RELAYED_PREFIXES)]


def request_id_of(headers: Headers) -> str | None:
    """The engine's name for the call; None where it gives none."""
    named = {name.lower(): value for name, value in headers}
    value = named.get(b"x-request-id") or named.get(b"request-id")
    return value.decode("latin-1") if value else None


def policy_refused(reply: Reply) -> bool:
    """Whether an engine cannot serve the policy that the call names, so that the call itself is not to blame."""
    return reply.status in {404, POLICY_REFUSED} or (reply.status == 400 and POLICY_NOT_LOADED in reply.reason)


def gateway_refused(name: str, reply: Reply) -> EngineFailed:
    """The failure of an engine that refuses the gateway's key, URL or model, with its own words as `sentence_of` leaves
    them. Its status tells SDKs that a retry is of no use."""
    words = sentence_of(reply.member("message") or "")
    log.error("the engine refuses the gateway", engine=name, status=reply.status)
    answered = f"{reply.status}, {words}" if words else str(reply.status)
    message = f"{name} refuses the gateway ({answered}): the operator must correct its key, URL or model name"
    failure = NotServed(424, message, code="engine_refused")
    failure.headers = [(b"x-should-retry", b"false")]
    return failure


def envelope_of(name: str, dialect: ApiDialect, raw: bytes) -> AnswerEnvelope:
    """A whole answer as far as the gateway relies on its shape. Raises `EngineFailed` for one that an SDK could not
    read."""
    try:
        envelope = msgspec.json.decode(raw, type=dialect.envelope)
        if not envelope.choices:
            raise IndexError("no choices")
    except UNREADABLE as error:
        message = f"{name} answered in a shape that is not its API's ({type(error).__name__}): is its URL right?"
        raise EngineFailed(502, message, code=INVALID) from error
    return envelope


def chunk_in(dialect: ApiDialect, data: bytes) -> tuple[Body, bool]:
    """A chunk of a stream, and whether it holds any of the answer. Raises `EngineFailed` for what is no chunk."""
    try:
        chunk = chunk_of(data)
        return chunk, dialect.begins(chunk)
    except (msgspec.DecodeError, AttributeError, TypeError, KeyError) as error:
        message = f"the engine streamed what is not {dialect.name} ({type(error).__name__})"
        raise EngineFailed(502, message, code=INVALID) from error


class Transport(Protocol):
    """The way to one engine. Both methods raise `EngineFailed` when there is no answer."""

    async def post(self, path: str, body: bytes, headers: Headers = ()) -> Reply:
        """The whole answer, whatever its status."""
        ...

    async def stream(self, path: str, body: bytes, headers: Headers = ()) -> Reply | EventReply:
        """The stream that the engine begins, or its whole answer where it does not stream."""
        ...


class EngineAnswer(msgspec.Struct, frozen=True):
    """What an engine answered, and in which dialect."""

    dialect: ApiDialect
    request: CallRequest
    """The call in this dialect: the agent's own, or its translation."""
    reply: Reply | EventReply
    of_policy: bool
    """It holds log-probabilities and token ids for which only the gateway had asked."""


class Engine(Protocol):
    """Answers calls."""

    @property
    def info(self) -> EngineInfo:
        """The engine as turns name it."""
        ...

    async def ask(self, dialect: ApiDialect, request: CallRequest, policy: ServedPolicy, role: str) -> EngineAnswer:
        """The engine's answer with status 200, whole or as a stream; `role` is the policy's.

        Raises `EngineFailed`, or another `HttpError` for a request that the engine refuses.
        """
        ...

    async def count_tokens(self, call: CallRequest, policy: ServedPolicy, role: str) -> int | None:
        """The tokens of a call's prompt; None from an engine that cannot tell. `role` is the policy's.

        Raises `EngineFailed`, another `HttpError` for a request that the engine refuses, and `BadRequest` for one that
        has no equivalent in an API that it speaks.
        """
        ...


class Upstream(Engine, Protocol):
    """Another server that answers in a policy's place, or for roles without one: it does not hold our policies."""

    @property
    def roles(self) -> Sequence[str]:
        """Roles that its settings name."""
        ...

    def policy_for(self, role: str, asked: str) -> ServedPolicy | None:
        """The model for a role as turns name it: version 0, no digest. None when it serves none.

        `asked`: the model as the agent named it.
        """
        ...

    async def forward(self, path: str, fields: Fields, policy: ServedPolicy, headers: Headers = ()) -> Reply:
        """The answer with status 200 of a path that answers no calls, with the policy's name in place of the model's.

        Raises `EngineFailed`, or another `EngineError` for a request that the server refuses.
        """
        ...
