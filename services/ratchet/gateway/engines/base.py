"""What the gateway needs of an engine, and the ways in which one fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ratchet.contract.state import ServedPolicy
from ratchet.contract.turn import EngineInfo
from ratchet.gateway.domain.calls import CallRequest
from ratchet.gateway.domain.forms import Form
from ratchet.service.problems import HttpError

BUSY = frozenset({408, 429})
"""Out of time, or too many calls: somebody else may have room."""


class EngineFailed(HttpError):
    """The engine's fault, not the agent's: somebody else may be asked instead."""

    def __init__(self, status: int, message: str, *, code: str, unreachable: bool = False) -> None:
        super().__init__(status, message, code=code)
        self.unreachable = unreachable
        """Nobody was there: asking this engine for another policy is no use."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Status and JSON of an engine's answer. `Any`: it is JSON from another process."""

    status: int
    body: Any
    raw: bytes = b""
    """The body as it came."""

    @property
    def reason(self) -> str:
        """The engine's own words, when it has some: in OpenAI's shape, in Ollama's, or in vLLM's older one."""
        body: Any = self.body if isinstance(self.body, dict) else {}
        error = body.get("error", body)
        message = error.get("message") if isinstance(error, dict) else error
        return message if isinstance(message, str) and message else f"the engine answered {self.status}"

    def refusal(self, kind_of: type[HttpError] = HttpError) -> HttpError:
        """What the agent is told of a request that the engine refuses."""
        body: Any = self.body if isinstance(self.body, dict) else {}
        error = body.get("error")
        told: dict[str, Any] = error if isinstance(error, dict) else {}
        kind, code, param = (told.get(name) for name in ("type", "code", "param"))
        return kind_of(
            self.status,
            self.reason,
            kind=kind if isinstance(kind, str) else None,
            code=code if isinstance(code, str) else None,
            param=param if isinstance(param, str) else None,
        )


class CallRefused(HttpError):
    """The policies' engine refuses the call, say because its context is too long: the agent gets its words, nobody else
    is asked, and the turn is a failure of the policy, whose own words may have made the call what it is."""


Post = Callable[[str, Mapping[str, Any]], Awaitable[Reply]]
"""Path and JSON to the engine's reply, whatever its status. Raises `EngineFailed` when there is none."""


class Engine(Protocol):
    """Answers calls."""

    @property
    def info(self) -> EngineInfo:
        """What turns say of it."""
        ...

    async def ask(self, form: Form, request: CallRequest, policy: ServedPolicy) -> Reply:
        """The engine's answer.

        Raises `EngineFailed`, or an `HttpError` below 500 for a request that is wrong in the engine's eyes.
        """
        ...


class Upstream(Protocol):
    """Another server that answers in a policy's place, or for roles that have none: it knows no policies of ours."""

    @property
    def info(self) -> EngineInfo:
        """What turns say of it."""
        ...

    @property
    def roles(self) -> list[str]:
        """Roles that it is named for."""
        ...

    def policy_for(self, role: str) -> ServedPolicy | None:
        """The model for a role as turns speak of it: version 0, no digest. None when it serves none."""
        ...

    async def ask(self, form: Form, request: CallRequest, policy: ServedPolicy) -> Reply:
        """Its answer. Raises `EngineFailed`, or `HttpError` for a request that it refuses."""
        ...
