"""A process that mines two windows of a role: the question comes in, and what it sees goes out, as JSON.

It has as much of a core and of memory as mining takes, up to a gigabyte, while the analyst answers and renews its
lead; and it can be ended at any moment.
"""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec
import numpy as np

from ratchet.analyst.clickhouse_episodes import StoredEpisodes, add_all
from ratchet.analyst.domain.looking import Mined
from ratchet.analyst.domain.patterns import Seen, pattern_id_of
from ratchet.analyst.mining.again import measure_again
from ratchet.analyst.mining.base import Episodes, Finding, Hypothesis
from ratchet.analyst.mining.features import EpisodeBuilder
from ratchet.analyst.mining.mine import mine
from ratchet.analyst.mining.wording import worded
from ratchet.analyst.questions import Question
from ratchet.core.contract.learning import Effect, Pattern
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse

NICENESS = 10
"""What answers agents goes first."""


async def read(question: Question) -> tuple[Episodes, Episodes]:
    """Both windows. Raises what `Warehouse` does."""
    windows = question.windows
    keep = {trigger for pattern in question.patterns for trigger in pattern.triggers}
    place = question.warehouse
    settings = SharedSettings(
        clickhouse_url=place.url, clickhouse_database=place.database, clickhouse_timeout_s=place.timeout_s
    )
    warehouse = await Warehouse.connect(settings)
    try:
        stored, read = StoredEpisodes(warehouse), list[Episodes]()
        for since, until in ((windows.since, windows.middle), (windows.middle, windows.until)):
            builder = EpisodeBuilder(keep)
            async for page in stored.window(question.role, since, until):
                add_all(builder, page)
            read.append(builder.build())
    finally:
        await warehouse.close()
    return read[0], read[1]


def mined(question: Question, before: Episodes, now: Episodes) -> Mined:
    """What the windows bear out, and what became of known patterns."""
    known = {*question.dismissed, *(pattern.pattern_id for pattern in question.patterns)}
    result = mine(
        before,
        now,
        alpha=question.alpha,
        seed=question.seed,
        discoveries=question.discoveries,
        is_known=lambda claim: id_of(claim, question) in known,
    )
    return Mined(
        trajectories=(len(before), len(now)),
        subjects=(len(set(before.subject.tolist())), len(set(now.subject.tolist()))),
        rewarded=(_known(before, "reward"), _known(now, "reward")),
        rated=(_rated(before), _rated(now)),
        tested=result.tested,
        patterns=tuple(pattern_of(finding, question) for finding in result.findings),
        seen={pattern.pattern_id: _seen(pattern, before, now) for pattern in question.patterns},
    )


def id_of(claim: Hypothesis, question: Question) -> str:
    return pattern_id_of(question.role, claim.kind, claim.finding, claim.measure, claim.triggers)


def pattern_of(finding: Finding, question: Question) -> Pattern:
    """A finding as a pattern that opens now."""
    claim, words = finding.hypothesis, worded(finding)
    return Pattern(
        pattern_id=id_of(claim, question),
        role=question.role,
        kind=claim.kind,
        finding=claim.finding,
        statement=words.statement,
        focus_area=words.focus_area,
        triggers=claim.triggers,
        effect=Effect(measure=claim.measure, value=finding.effect, low=finding.low, high=finding.high),
        share=finding.share,
        count=finding.count,
        reward_cost=finding.reward_cost,
        cost_usd=finding.cost_usd,
        confidence=finding.stability,
        p_value=finding.p_value,
        trend=(finding.share,),
        evidence=finding.evidence,
        terms=claim.terms,
        action=words.action,
        advice=words.advice,
        opened_at=question.windows.until,
        seen_at=question.windows.until,
    )


def _seen(pattern: Pattern, before: Episodes, now: Episodes) -> Seen:
    again = measure_again(pattern, before, now)
    return Seen(share=again.share, count=again.count, effect=again.effect)


def _known(episodes: Episodes, measure: str) -> int:
    return int(np.count_nonzero(~np.isnan(episodes.measures[measure])))


def _rated(episodes: Episodes) -> int:
    return int(np.nansum(episodes.measures["feedback"]))


def main() -> None:
    """Answer one question."""
    os.nice(NICENESS)
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    before, now = asyncio.run(read(question))
    sys.stdout.buffer.write(msgspec.json.encode(mined(question, before, now)))


if __name__ == "__main__":
    main()
