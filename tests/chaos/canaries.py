"""One candidate after the other in both roles, and what the deployer decided about each."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.chaos.world import EQUAL, World

ENDED = frozenset({"promoted", "rolled_back", "refused", "aborted", "withdrawn", "superseded"})
STUCK = frozenset({"held", "suspended", "awaiting_approval"})
"""A person decides."""
LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a candidate's rollout ended, or that a person was asked."""

    role: str
    version: int
    state: str
    reason: str

    @property
    def lost_evidence(self) -> bool:
        """Taken back because a stream was made anew: nothing could be proven any more (E6)."""
        return self.state == "rolled_back" and ("made anew" in self.reason or "an older copy" in self.reason)

    @property
    def is_wrong(self) -> bool:
        """An equal canary that was taken back for what it did, or a bad one that was promoted."""
        if self.role == EQUAL:
            return self.state in ("rolled_back", "refused", "suspended") and not self.lost_evidence
        return self.state == "promoted"


@dataclass
class Canaries:
    """Asks for candidates until it is stopped."""

    world: World
    verdicts: list[Verdict] = field(default_factory=list[Verdict])
    waiting: dict[str, str] = field(default_factory=dict[str, str])
    """By role: the candidate that is under test, and where it stands."""
    stopping: bool = False

    async def offer(self, role: str) -> None:
        """A new candidate whenever the last one was decided; the last one is decided too."""
        async with httpx.AsyncClient(base_url=self.world.stack.url("deployer"), timeout=20) as http:
            for number in itertools.count(1):
                if self.stopping:
                    return
                version = await self._create(http, role, number)
                self.verdicts.append(await self._decided(http, role, version))
                self.waiting.pop(role, None)

    async def undecided(self) -> list[str]:
        """The candidates that are under test."""
        return [f"{role}: {state}" for role, state in self.waiting.items()]

    async def _create(self, http: httpx.AsyncClient, role: str, number: int) -> int:
        bundle = {"instructions": {"text": f"Answer in at most {number} sentences."}}
        body = {"bundle": bundle, "actor": "chaos", "reason": "the next one"}
        self.waiting[role] = f"candidate {number} is offered"
        made = await self._asked(http, "POST", f"/v1/policies/{role}/bundles", body)
        return int(made["policy"]["version"])

    async def _decided(self, http: httpx.AsyncClient, role: str, version: int) -> Verdict:
        while True:
            rollout = await self._asked(http, "GET", f"/v1/rollouts/{role}")
            if rollout and rollout["candidate"]["version"] == version:
                state, reason = rollout["state"], rollout["reason"]
                counts = [rollout["arms"][arm]["trajectories"] for arm in ("stable", "canary")]
                waits_for = ", ".join([*rollout["waiting_for"], *filter(None, (rollout["late"], rollout["fault"]))])
                self.waiting[role] = f"v{version} {state}, {counts} trajectories, waits for {waits_for}"
                if state in ENDED:
                    return Verdict(role, version, state, reason)
                if state in STUCK:
                    body = {"actor": "chaos", "reason": "go on"}
                    await self._asked(http, "POST", f"/v1/rollouts/{role}/abort", body)
                    return Verdict(role, version, state, reason)
            await asyncio.sleep(LOOK_S)

    async def _asked(self, http: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
        """The answer, however long the deployer is away. None: there is nothing of that name."""
        while True:
            try:
                answer = await http.request(method, path, json=body)
            except httpx.HTTPError:
                pass
            else:
                if answer.status_code == 200:
                    return answer.json()
                if answer.status_code in (404, 409):
                    return None
                if answer.status_code < 500:
                    raise AssertionError(f"{path}: {answer.status_code} {answer.text}")
            await asyncio.sleep(LOOK_S)
