"""Runs of the analyst on a broker in memory, with scripted windows and a script in the place of mining."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from ratchet.analyst.domain.looking import Mined
from ratchet.analyst.domain.patterns import Seen, pattern_id_of
from ratchet.analyst.domain.windows import Windows
from ratchet.analyst.kv_patterns import PatternStore
from ratchet.analyst.nats_trail import Trail
from ratchet.analyst.questions import Place, Question
from ratchet.analyst.runs import Runs
from ratchet.bus.testing import FakeBroker, FakeBus
from ratchet.core.contract import Alert
from ratchet.core.contract.learning import Effect, Pattern, Trigger
from ratchet.core.service.contracts import load_contracts

ROLE = "support"
START = datetime(2026, 11, 2, tzinfo=UTC)
PLACE = Place(url="http://127.0.0.1:8123", database="ratchet", timeout_s=10)
POLICY = f"{ROLE}@3-1a2b3c4d"


def pattern(agent: str = "refunds", at: datetime = START, **changes: object) -> Pattern:
    """A pattern that opens at an instant."""
    triggers = (Trigger(attribute="agent", value=agent),)
    values: dict[str, object] = {
        "pattern_id": pattern_id_of(ROLE, "association", "agent", "failure", triggers),
        "role": ROLE,
        "kind": "association",
        "finding": "agent",
        "statement": f"Trajectories of the agent {agent} fail more often.",
        "focus_area": "agent_behavior",
        "triggers": triggers,
        "effect": Effect(measure="failure", value=0.5, low=0.4, high=0.6),
        "share": 0.3,
        "count": 90,
        "reward_cost": 45.0,
        "confidence": 1.0,
        "p_value": 1e-9,
        "trend": (0.3,),
        "advice": "Look at them.",
        "opened_at": at,
        "seen_at": at,
    }
    return Pattern(**{**values, **changes})  # type: ignore[arg-type]


class Leads:
    """A process that always leads."""

    term = 1

    async def confirm(self) -> None:
        return


class AnalystWorld:
    """A broker, and processes that look at one role."""

    def __init__(self) -> None:
        self.broker = FakeBroker(load_contracts())
        self.bus = FakeBus(self.broker)
        self.store = PatternStore(self.bus)
        self.now = START + timedelta(hours=2, minutes=10)
        self.trajectories = (300, 300)
        self.subjects = (250, 240)
        self.claims: Sequence[Pattern] = ()
        """What mining bears out."""
        self.seen: dict[str, Seen] = {}
        self.asked: list[Question] = []
        self.policy: str | None = POLICY
        self.raised: list[Alert] = []

    def runs(self) -> Runs:
        """A process."""
        return Runs(
            self.store, Trail(self.bus), Leads(), self, self.mine, self.stable, self.alerts, PLACE, lambda: self.now
        )

    async def roles(self, since: datetime) -> list[str]:
        return [ROLE]

    async def count(self, role: str, windows: Windows) -> tuple[int, int]:
        return self.trajectories

    async def stable(self, role: str) -> str | None:
        return self.policy

    async def alerts(self, role: str) -> list[Alert]:
        return self.raised

    async def mine(self, question: Question) -> Mined:
        self.asked.append(question)
        return Mined(
            trajectories=self.trajectories,
            subjects=self.subjects,
            rated=(1, 2),
            rewarded=(300, 290),
            tested=120,
            patterns=tuple(self.claims),
            seen=self.seen,
        )

    async def patterns(self) -> list[Pattern]:
        return [entry.value for entry in await self.store.every()]
