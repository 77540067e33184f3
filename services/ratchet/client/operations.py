"""Three questions of an agent or a script about the state of learning, over HTTP, each answered as plain JSON.

    from ratchet.client.operations import Operations

    with Operations("http://127.0.0.1:8081") as operations:
        operations.get_ml_status()["roles"]["support"]["stable"]
        operations.get_training_status(role="support")["active"]
        operations.get_dpo_status()["roles"]["support"]["would_fire"]

The coordinator itself describes the members of the answers, at `/openapi.json`.
"""

from __future__ import annotations

from typing import Any

from ratchet.core.service.http_client import ApiClient, Peer, bearer

TIMEOUT_S = 10.0
"""Longest wait for one answer."""


class Operations:
    """Asks the coordinator. Raises `Unavailable` while it does not answer, `Rejected` when it refuses."""

    def __init__(self, coordinator_url: str, timeout_s: float = TIMEOUT_S, api_key: str | None = None) -> None:
        """`api_key`: a key with the scope `view`, where the coordinator asks for one."""
        self._coordinator = ApiClient(Peer("the coordinator", coordinator_url, bearer(api_key), timeout_s))

    def __enter__(self) -> Operations:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """For callers that close what they open: between two questions nothing is open."""

    def get_ml_status(self) -> dict[str, Any]:
        """Jobs by state, slots, models, and the policy that serves each role (`GET /v1/status`)."""
        return self._get("/v1/status")

    def get_training_status(self, role: str | None = None) -> dict[str, Any]:
        """Running and waiting jobs, and how the last ones ended (`GET /v1/status/training`)."""
        return self._get("/v1/status/training", role)

    def get_dpo_status(self, role: str | None = None) -> dict[str, Any]:
        """Preferences by role and source, and whether the trigger would fire (`GET /v1/status/dpo`)."""
        return self._get("/v1/status/dpo", role)

    def _get(self, path: str, role: str | None = None) -> dict[str, Any]:  # `Any`: JSON
        return self._coordinator.ask("GET", path, dict[str, Any], query={"role": role})
