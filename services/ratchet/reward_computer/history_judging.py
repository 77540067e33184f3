"""What judges say of history: what is stored, and what they are asked now; and how far people agree with them."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ratchet.bus.connection import Bus
from ratchet.core.contract import Feedback
from ratchet.core.contract.reward_commands import Judged, JudgeReport
from ratchet.core.errors import BadRequest, NotFound, Rejected, Unavailable
from ratchet.core.judging.calibration import UNCALIBRATED, Calibration, calibration
from ratchet.core.judging.profile import JudgeProfile
from ratchet.core.judging.spending import DailyLedger
from ratchet.core.preferences.rules.base import Try
from ratchet.core.rules.call_budget import NOTHING, BudgetSpent
from ratchet.reward_computer.clickhouse_facts import Key
from ratchet.reward_computer.clickhouse_proposals import PAGE
from ratchet.reward_computer.components.judge import assessed as judged_in
from ratchet.reward_computer.components.user_feedback import assessed as rated_in
from ratchet.reward_computer.judging import Judging

AT_ONCE = 8
"""Trajectories that judges are asked about at a time."""
ASKED, JUDGED, NO_VERDICT, OVER_BUDGET, FAILED = "asked", "judged", "no_verdict", "over_budget", "failed"
"""What became of a question, as `Judged` counts it."""

OnProgress = Callable[[int, int, str], None]
"""Called with what is done, all there is to do, and what that is."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A trajectory that its judge has not judged."""

    key: Key
    judge: str
    people: float | None
    """The score that people gave; None: it has no rating."""


@dataclass
class Testimony:
    """What judges and people say of some trajectories."""

    counts: Counter[str] = field(default_factory=Counter[str])
    further: dict[Key, list[Feedback]] = field(default_factory=dict[Key, list[Feedback]])
    """Judgements of just now, which may not be stored yet."""
    labels: dict[str, list[tuple[float, float]]] = field(default_factory=dict[str, list[tuple[float, float]]])
    """By judge: the scores of people and judge, on trajectories that both have seen."""
    judged: Counter[str] = field(default_factory=Counter[str])
    """By judge: trajectories that it has judged."""
    silent: dict[str, str] = field(default_factory=dict[str, str])
    """Judges that are not asked any more, and why."""

    @property
    def report(self) -> Judged:
        """What became of the questions."""
        return Judged(**{name: self.counts[name] for name in Judged.__struct_fields__})

    def calibrations(self) -> dict[str, Calibration]:
        """How far people agree with each judge that has judged."""
        return {digest: calibration(self.labels.get(digest, ())) for digest in self.judged}

    def add(self, digest: str, score: float, people: float | None) -> None:
        """One judgement, and what people said of the same trajectory."""
        self.judged[digest] += 1
        if people is not None:
            self.labels.setdefault(digest, []).append((people, score))


@dataclass(frozen=True)
class HistoryJudging:
    """Reads judgements, and asks for those that are missing."""

    judging: Judging
    ledgers: Mapping[str, DailyLedger]
    """By the role whose judge it is, as settings name it."""
    bus: Bus

    async def reports(
        self, judges: Mapping[str, JudgeProfile], testimony: Testimony, counted: Mapping[str, Calibration]
    ) -> list[JudgeReport]:
        """Each judge, and how far people agree with it. `counted`: the calibrations that give judges weight."""
        reports: list[JudgeReport] = []
        for role, profile in judges.items():
            made = calibration(testimony.labels.get(profile.digest, ()))
            ledger = self.ledgers.get(role)
            charged, limit = (await ledger.charged(), ledger.limit) if ledger else (NOTHING, NOTHING)
            reports.append(
                JudgeReport(
                    role=role,
                    model=profile.model,
                    digest=profile.digest,
                    rubric_digest=profile.rubric_digest,
                    judged=testimony.judged[profile.digest],
                    labels=made.labels,
                    agreed=made.agreed,
                    kappa=made.kappa if made.labels else None,
                    low=made.low,
                    high=made.high,
                    calibrated=made.holds,
                    counts=counted.get(profile.digest, UNCALIBRATED).holds,
                    calls_today=int(charged.calls),
                    calls_per_day=int(limit.calls),
                    usd_today=charged.usd,
                    usd_per_day=limit.usd if math.isfinite(limit.usd) else None,
                )
            )
        return reports

    async def testimony(
        self, judge_of: Callable[[str], JudgeProfile | None], keys: Sequence[Key], asks: bool, on_progress: OnProgress
    ) -> Testimony:
        """Of these trajectories, each by the judge of its role; `asks`: also of those that it has not judged.

        Those that people have rated are asked about first: they are what calibrates a judge.
        """
        testimony, unjudged = Testimony(), list[_Open]()
        digests = {key: profile.digest for key in keys if (profile := judge_of(key[0])) is not None}
        for start in range(0, len(digests), PAGE):
            on_progress(start, len(digests), "reading judgements")
            page = list(digests)[start : start + PAGE]
            opinions = await self.judging.facts.feedback(page)
            for key in page:
                given, digest = opinions.get(key, ()), digests[key]
                judgement, people = judged_in(given, digest), rated_in(given)
                rated = people.score if people else None
                if judgement is None:
                    unjudged.append(_Open(key, digest, rated))
                else:
                    testimony.add(digest, judgement.score, rated)
        unjudged.sort(key=lambda one: one.people is None)
        for start in range(0, len(unjudged) if asks else 0, AT_ONCE):
            on_progress(start, len(unjudged), "asking judges")
            await self._ask(testimony, unjudged[start : start + AT_ONCE])
        return testimony

    async def _ask(self, testimony: Testimony, some: Sequence[_Open]) -> None:
        """Ask about some trajectories, and publish what the judges say."""
        texts = await self.judging.texts([asked.key for asked in some])
        answers = await asyncio.gather(*(self._answer(testimony, asked, texts.get(asked.key)) for asked in some))
        judgements = [answer for answer in answers if answer is not None]
        await self.bus.publish_all(judgements)
        for asked, answer in zip(some, answers, strict=True):
            if answer is not None and isinstance(answer.value, float):
                testimony.further.setdefault(asked.key, []).append(answer)
                testimony.add(asked.judge, answer.value, asked.people)

    async def _answer(self, testimony: Testimony, one: _Open, tried: Try | None) -> Feedback | None:
        judge = self.judging.judges.get(one.judge)
        if judge is None or tried is None or tried.is_left_out:
            return None
        if one.judge in testimony.silent:
            testimony.counts[testimony.silent[one.judge]] += 1
            return None
        try:
            answer = await self.judging.judgement(judge, tried)
            outcome = JUDGED if answer else NO_VERDICT
        except BudgetSpent:
            answer, outcome = None, OVER_BUDGET
        except (Unavailable, NotFound, Rejected) as error:
            answer, outcome = None, NO_VERDICT if isinstance(error, BadRequest) else FAILED
        if outcome in (OVER_BUDGET, FAILED):
            testimony.silent[one.judge] = outcome
        testimony.counts[outcome] += 1
        testimony.counts[ASKED] += outcome != OVER_BUDGET
        return answer
