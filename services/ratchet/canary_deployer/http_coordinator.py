"""What the coordinator knows of history: how long outcomes took, and prompts that a candidate has not seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import httpx
import msgspec

from ratchet.canary_deployer.gates.base import LoggedPrompts
from ratchet.contract.http.answers import ErrorOut
from ratchet.contract.state import PolicyVersion
from ratchet.errors import Rejected, Unavailable

T = TypeVar("T")

OUTCOMES_S = 5.0
"""How long a start waits for the history of outcomes."""
PROMPTS_S = 60.0
"""How long a shadow replay waits for its prompts."""


class _Outcomes(msgspec.Struct, frozen=True):
    """The part of the answer that is used here."""

    seconds: list[float]


class HttpCoordinator:
    """Its read API. Without an address everything is `Unavailable`."""

    def __init__(self, client: httpx.AsyncClient | None) -> None:
        self._client = client

    async def outcome_times(self, policy: PolicyVersion, within_s: float) -> list[float]:
        """Seconds from the start to the first known outcome, of those known within `within_s`.

        Raises `Unavailable`, or `Rejected` with what the coordinator says against it.
        """
        path = f"/v1/models/{policy.role}/{policy.version}/outcome-times"
        return (await self._get(path, {"within_s": within_s}, OUTCOMES_S, _Outcomes)).seconds

    async def prompts(self, candidate: PolicyVersion, limit: int) -> LoggedPrompts:
        """At most `limit` prompts that are newer than the candidate's data. Raises as `outcome_times` does."""
        query = {"role": candidate.role, "version": candidate.version, "limit": limit}
        return await self._get("/v1/replay/prompts", query, PROMPTS_S, LoggedPrompts)

    async def _get(self, path: str, query: Mapping[str, str | int | float], timeout_s: float, kind: type[T]) -> T:
        if self._client is None:
            raise Unavailable("the deployer does not know the coordinator (RATCHET_COORDINATOR_URL)")
        try:
            answer = await self._client.get(path, params=query, timeout=timeout_s)
            if answer.status_code >= 500:
                raise Unavailable(f"the coordinator answers {answer.status_code} to {path}")
            if answer.status_code >= 400:
                raise Rejected(f"the coordinator refuses: {_detail(answer)}")
            return msgspec.json.decode(answer.content, type=kind)
        except httpx.HTTPError as error:
            raise Unavailable(f"the coordinator does not answer: {error!r}") from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise Unavailable(f"the coordinator's answer to {path} cannot be read: {error}") from error


def _detail(answer: httpx.Response) -> str:
    """The coordinator's one line."""
    try:
        return msgspec.json.decode(answer.content, type=ErrorOut).error.message
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return str(answer.status_code)
