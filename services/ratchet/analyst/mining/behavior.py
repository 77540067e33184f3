"""How agents behave: what single trajectories show (`calls.py`), and what only many do.

| finding | claim |
|---|---|
| the names of `calls.BEHAVIORS` | trajectories that behave so fail more, or cost more |
| `tool_never_used` | a tool that is offered is called in less than 1 % |
| `longer_answers` | answers got longer since the window before, and that by more than the reward rose, in spreads |
| `component_diverged` | a component of the reward rose against the others since the window before |

`policies_differ` is a claim about clusters, in `clusters.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np

from ratchet.analyst.mining.base import FORMING, Episodes, Floats, Hypothesis
from ratchet.analyst.mining.measure import Pool, contrast, measured
from ratchet.analyst.mining.testing import Pools
from ratchet.core.contract.learning import Trigger

FORMED_Z = 2.0
"""Standard errors in the forming part. It forms claims, and proves none."""
RARE = 0.01
FEWEST = 30
"""Trajectories of each window's forming part that were offered a tool."""
MOST_TOOLS = 20
LONGER_ANSWERS, TOOL_NEVER_USED, COMPONENT_DIVERGED = "longer_answers", "tool_never_used", "component_diverged"
COMPONENT_FELL = "component_fell"
"""Of an alert alone: a component fell against the others."""


def hypotheses(before: Episodes, now: Episodes, seed: int) -> list[Hypothesis]:  # noqa: ARG001 - as all detectors
    """What the forming parts of both windows suggest. Nothing is drawn by `seed`."""
    pool = Pools.of(before, now).forming
    return [*_flagged(pool, now), *_never_used(before, now), *_longer(pool), *_diverging(pool, before, now)]


def rises(pool: Pool, claim: Hypothesis) -> float:
    """By how many standard errors what the claim compares is larger than beside it."""
    return contrast(claim, pool.sample(claim)).z


def _flagged(pool: Pool, now: Episodes) -> Iterator[Hypothesis]:
    """One claim a behaviour: that it goes with failing, else that it is expensive."""
    for behavior in now.members["behavior"].values if "behavior" in now.members else ():
        trigger = Trigger(attribute="behavior", value=behavior)
        claims = (Hypothesis("behavior", behavior, measure, (trigger,)) for measure in ("failure", "cost_usd"))
        yield from islice((claim for claim in claims if rises(pool, claim) >= FORMED_Z), 1)


def _never_used(before: Episodes, now: Episodes) -> Iterator[Hypothesis]:
    offered = now.members["offered"].values if "offered" in now.members else ()
    unused = 0
    for tool in offered:
        claim = _unused(tool)
        sides = [window.matching(claim.triggers) & (window.part() == FORMING) for window in (before, now)]
        calls = sum(float(_called(tool, window)[side].sum()) for window, side in zip((before, now), sides, strict=True))
        if calls == 0 and min(map(np.count_nonzero, sides)) >= FEWEST and unused < MOST_TOOLS:
            unused += 1
            yield claim


def _unused(tool: str) -> Hypothesis:
    trigger = Trigger(attribute="offered", value=tool)
    return Hypothesis("behavior", TOOL_NEVER_USED, "share", (trigger,), value=partial(_called, tool), rare=RARE)


def _called(tool: str, episodes: Episodes) -> Floats:
    """1 for trajectories that call the tool (n,)."""
    return episodes.matching([Trigger(attribute="tool", value=tool)]).astype(np.float64)


def _longer(pool: Pool) -> Iterator[Hypothesis]:
    claim = Hypothesis("behavior", LONGER_ANSWERS, "answer_chars", between_windows=True)
    value = pool.sample(claim).value, pool.sample(replace(claim, measure="reward")).value
    known = ~np.isnan(value[0]) & ~np.isnan(value[1])
    spread = [float(each[known].std()) if known.any() else 0.0 for each in value]
    if min(spread) <= 0:
        return
    more = replace(claim, value=partial(_more_than_reward, spread[0], spread[1]))
    if min(rises(pool, claim), rises(pool, more)) >= FORMED_Z:
        yield replace(claim, also=more)


def _more_than_reward(of_length: float, of_reward: float, episodes: Episodes) -> Floats:
    """Characters of the answer less the reward, each in its spread (n,)."""
    return measured(episodes, "answer_chars") / of_length - measured(episodes, "reward") / of_reward


def _diverging(pool: Pool, before: Episodes, now: Episodes) -> Iterator[Hypothesis]:
    for name in sorted(set(before.components) & set(now.components)):
        claim = _diverged(name)
        if rises(pool, claim) >= FORMED_Z:
            yield claim


def _diverged(component: str) -> Hypothesis:
    trigger, value = Trigger(attribute="component", value=component), partial(_against_others, component)
    return Hypothesis("behavior", COMPONENT_DIVERGED, "reward", (trigger,), between_windows=True, value=value)


def _against_others(name: str, episodes: Episodes) -> Floats:
    """A component less the mean of the others (n,); NaN where there is none."""
    own = episodes.components.get(name)
    others = [scores for other, scores in episodes.components.items() if other != name]
    if own is None or not others:
        return np.full(len(episodes), np.nan)
    known = ~np.isnan(others)
    count = known.sum(axis=0)
    mean = np.where(known, others, 0.0).sum(axis=0) / np.maximum(count, 1)
    return np.where(count > 0, own - mean, np.nan)


RESTORED: Mapping[str, Callable[[str], Hypothesis]] = {
    TOOL_NEVER_USED: _unused,
    COMPONENT_DIVERGED: _diverged,
    COMPONENT_FELL: _diverged,
}
"""Finding -> its claim about a tool or a component: those whose value no measure holds."""
