"""What the gateway needs of an engine, and the ways in which one fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from ratchet.contract.state import ServedPolicy
from ratchet.contract.turn import EngineInfo
from ratchet.gateway.domain.forms import Form
from ratchet.gateway.domain.requests import CallRequest
from ratchet.service.problems import HttpError

log = structlog.get_logger()

BUSY = frozenset({408, 429})
"""Out of time, or too many calls: another engine may have room."""
WRONG_KEY = frozenset({401, 403})
"""An engine that does not let the gateway in."""


class EngineFailed(HttpError):
    """The engine's fault, not the agent's: the gateway may ask another one."""

    def __init__(self, status: int, message: str, *, code: str, unreachable: bool = False) -> None:
        super().__init__(status, message, code=code)
        self.unreachable = unreachable
        """Nothing listens at the address: another policy of the same engine cannot answer either."""


class CallRefused(HttpError):
    """The policies' engine refuses the call, say because its context is too long.

    The agent gets the engine's words, and the gateway asks no other engine. The turn counts as a failure of the policy:
    the policy's own answers may have made the context too long.
    """


@dataclass(frozen=True, slots=True)
class Reply:
    """Status and JSON of an engine's answer. `Any`: it is JSON from another process."""

    status: int
    body: Any
    raw: bytes = b""
    """The body as it came."""

    @property
    def reason(self) -> str:
        """The engine's own words, in OpenAI's shape, Ollama's, or vLLM's older one; without any, its status."""
        body: Any = self.body if isinstance(self.body, dict) else {}
        error = body.get("error", body)
        message = error.get("message") if isinstance(error, dict) else error
        return message if isinstance(message, str) and message else f"the engine answered {self.status}"

    def refusal(self, kind_of: type[HttpError] = HttpError) -> HttpError:
        """The answer to an agent whose request the engine refuses: the engine's words in our shape."""
        error: Any = self.body.get("error") if isinstance(self.body, dict) else None
        members: dict[str, Any] = error if isinstance(error, dict) else {}
        kind, code, param = (
            value if isinstance(value := members.get(name), str) else None for name in ("type", "code", "param")
        )
        return kind_of(self.status, self.reason, kind=kind, code=code, param=param)


def gateway_refused(name: str, reply: Reply) -> EngineFailed:
    """The failure of an engine that refuses the gateway's key or URL. Its own words may hold the key, or a prompt:
    neither agent, turn nor log gets them."""
    log.error("the engine refuses the gateway", engine=name, status=reply.status)
    message = f"{name} refuses the gateway: the operator must correct its key, URL or model name"
    return EngineFailed(502, message, code="engine_refused")


Post = Callable[[str, Mapping[str, Any]], Awaitable[Reply]]
"""Path and JSON to the engine's reply, whatever its status. Raises `EngineFailed` when there is none."""


class Engine(Protocol):
    """Answers calls."""

    @property
    def info(self) -> EngineInfo:
        """The engine as turns name it."""
        ...

    async def ask(self, form: Form, request: CallRequest, policy: ServedPolicy) -> Reply:
        """The engine's answer.

        Raises `EngineFailed`, or an `HttpError` below 500 for a request that the engine refuses.
        """
        ...


class Upstream(Engine, Protocol):
    """Another server that answers in a policy's place, or for roles without one: it does not hold our policies."""

    @property
    def roles(self) -> list[str]:
        """Roles that its settings name."""
        ...

    def policy_for(self, role: str) -> ServedPolicy | None:
        """The model for a role as turns name it: version 0, no digest. None when it serves none."""
        ...
