"""The bundle of a trajectory's policy, for agents that compose their own prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ratchet.client.training import HTTP_S, Listener
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.http.gateway import FetchedBundle
from ratchet.core.rules.bundles import expanded


class TrajectoryBundle(msgspec.Struct, frozen=True, kw_only=True):
    """What the policy of one trajectory changes of its calls. Every call of the trajectory takes `headers`."""

    trajectory_id: str
    policy: str
    """Name of the policy."""
    digest: str
    arm: str
    """`stable` or `canary`."""
    bundle: Bundle
    """Empty where the agent's own prompt stands."""

    @property
    def headers(self) -> dict[str, str]:
        """For each call: which trajectory it belongs to, and that its prompt was composed by this bundle."""
        named = {"x-ratchet-trajectory": self.trajectory_id}
        return named | ({"x-ratchet-bundle": self.digest} if self.digest else {})

    @property
    def span_attributes(self) -> dict[str, str]:
        """The bundle as OpenTelemetry names a prompt, for the agent's own spans; empty before the role has a policy."""
        role, _, version = self.policy.partition("@")
        return {"gen_ai.prompt.name": role, "gen_ai.prompt.version": version.partition("-")[0]} if version else {}

    def instructions(self, own: str = "", variables: Mapping[str, Any] | None = None) -> str:
        """The system prompt; `own`: the agent's. `Any`: texts and numbers. Raises `MissingVariable`."""
        return expanded(self.bundle.instructions, own, variables or {})


async def fetch_bundle(gateway: Listener, **asked: str | None) -> TrajectoryBundle:
    """Ask the gateway. Raises `Unavailable` when it does not answer, and `Rejected` or `NotFound` with its reason."""
    from ratchet.core.service.http_client import AsyncApiClient, Peer, bearer  # noqa: PLC0415 - most agents never ask

    key = gateway.api_key.get_secret_value() if gateway.api_key else None
    query = {name: value for name, value in asked.items() if value is not None}
    async with AsyncApiClient(Peer(gateway.name, gateway.url, bearer(key), HTTP_S)) as client:
        answer = await client.ask("GET", "/v1/bundle", FetchedBundle, query=query)
    return TrajectoryBundle(
        trajectory_id=answer.trajectory_id,
        policy=answer.policy,
        digest=answer.digest,
        arm=answer.arm,
        bundle=answer.bundle,
    )
