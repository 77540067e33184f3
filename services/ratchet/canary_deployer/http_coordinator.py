"""What the coordinator knows of history: how long outcomes took, and prompts that a candidate has not seen."""

from __future__ import annotations

from ratchet.canary_deployer.gates.base import LoggedPrompts
from ratchet.contract.http.models import OutcomeTimesOut
from ratchet.contract.state import PolicyVersion
from ratchet.errors import Rejected, Unavailable
from ratchet.service.http_client import AsyncApiClient, Peer

OUTCOMES_S = 5.0
"""How long a start waits for the history of outcomes."""
PROMPTS_S = 60.0
"""How long a shadow replay waits for its prompts."""


def coordinator_peer(url: str) -> Peer:
    """The coordinator, whose refusals are all `Rejected`."""
    errors = dict.fromkeys(range(400, 500), Rejected)
    return Peer("the coordinator", url, errors=errors, refusal="the coordinator refuses: {reason}", quotable=False)


class HttpCoordinator:
    """Its read API. Without an address everything is `Unavailable`."""

    def __init__(self, client: AsyncApiClient | None) -> None:
        self._client = client

    async def outcome_times(self, policy: PolicyVersion, within_s: float) -> list[float]:
        """Seconds from the start to the first known outcome, of those known within `within_s`.

        Raises `Unavailable`, or `Rejected` with what the coordinator says against it.
        """
        path, query = f"/v1/models/{policy.role}/{policy.version}/outcome-times", {"within_s": within_s}
        return (await self._known().ask("GET", path, OutcomeTimesOut, query=query, timeout_s=OUTCOMES_S)).seconds

    async def prompts(self, candidate: PolicyVersion, limit: int) -> LoggedPrompts:
        """At most `limit` prompts that are newer than the candidate's data. Raises as `outcome_times` does."""
        query = {"role": candidate.role, "version": candidate.version, "limit": limit}
        return await self._known().ask("GET", "/v1/replay/prompts", LoggedPrompts, query=query, timeout_s=PROMPTS_S)

    def _known(self) -> AsyncApiClient:
        if self._client is None:
            raise Unavailable("the deployer does not know the coordinator (RATCHET_COORDINATOR_URL)")
        return self._client
