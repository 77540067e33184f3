"""Whose opinions no training learns from: raters in quarantine, and those that a person banned.

A rater is in quarantine who disagrees with the others more than chance makes (`agreement`), until a person releases it.
A release and a ban hold for as long as no one decides otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ratchet.bus.kv import Bucket
from ratchet.core.contract.state import BANNED, RELEASED, RaterDecision, RaterDecisions
from ratchet.core.datasets.domain.pairs import Opinion
from ratchet.core.preferences.agreement import Agreement, RaterReport, agreement

COUNTS, QUARANTINED = "counts", "quarantined"
"""Standings that no person decided; the others are those of `RaterDecision`."""

Decisions = Mapping[str, RaterDecision]
"""By rater: `NAME`, or `SOURCE/NAME`."""


def standing(report: RaterReport, decisions: Decisions) -> str:
    """Whether a training learns from a rater's opinions: it `counts`, is `quarantined`, `released` or `banned`."""
    decided = decisions.get(report.rater) or decisions.get(report.rater.partition("/")[2])
    return decided.decision if decided else QUARANTINED if report.is_quarantined else COUNTS


def left_out(report: Agreement, decisions: Decisions) -> list[str]:
    """The raters whose opinions no training learns from."""
    banned = [rater for rater, decided in decisions.items() if decided.decision == BANNED]
    quarantined = [judged.rater for judged in report.raters if standing(judged, decisions) == QUARANTINED]
    return sorted({*banned, *quarantined})


@dataclass(frozen=True)
class Quarantine:
    """The decisions of people about raters."""

    bucket: Bucket[RaterDecisions]

    async def decisions(self, role: str) -> Decisions:
        """Those of a role. Raises `BusUnavailable`."""
        entry = await self.bucket.get(role)
        return entry.value.raters if entry else {}

    async def left_out(self, role: str, opinions: Sequence[Opinion]) -> list[str]:
        """The raters whose opinions a training of the role does not learn from. Raises `BusUnavailable`."""
        report = await asyncio.to_thread(agreement, opinions)
        return left_out(report, await self.decisions(role))

    async def decide(self, role: str, rater: str, *, banned: bool, by: str, at: datetime) -> None:
        """Ban or release a rater. Raises `BusUnavailable`."""
        decision = RaterDecision(decision=BANNED if banned else RELEASED, by=by, at=at)

        def changed(current: RaterDecisions | None) -> RaterDecisions:
            return RaterDecisions(raters={**(current.raters if current else {}), rater: decision})

        await self.bucket.change(role, changed)
