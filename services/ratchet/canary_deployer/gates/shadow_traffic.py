"""Gate `shadow_traffic`: the candidate is asked a share of the calls that stable answers just now, for no agent.

The deployer mirrors, not the gateway: turns hold what an agent asked and what stable answered, so no call waits for it,
and stable is not asked again. It reads the headers of RL_TURNS from the gate's beginning on, draws calls by trajectory
and place (`domain/live_calls.py`), and fetches those turns alone. The candidate is asked as evaluation traffic: by its
name, so that no statistic and no training has it, and unrecorded, so that what a person said is stored in no second
place where an erasure would not look. No tool is called: only the next message is judged, by the role's evaluator, as
in a replay (`answer_pairs.py`). What opted out is in no stream; what is erased before the judgement is dropped then.

Bounds: `share`, `calls`, `hours` and `usd_per_day` of the plan; `AT_A_TIME` calls at once, `ROUND` in a round, and what
was drawn beyond is dropped and counted, so nothing queues up; a prompt has 256 KB, all of them `MOST_PROMPTS`.

A check does one round and raises `GateGoesOn`, so that a newer candidate, an order or the end of the role never waits
for it. What a round knows stands in memory: a deployer that restarts, or another that takes over, begins again with
the calls that come then, so no call counts twice. What was spent stands in the bucket `judge_spend`, and stays spent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.gating import SHADOW_TRAFFIC
from ratchet.canary_deployer.domain.live_calls import LiveSample
from ratchet.canary_deployer.domain.paired import compare
from ratchet.canary_deployer.domain.rollout import FAILED, NEEDS_APPROVAL, NOT_RUN, PASSED, GateResult
from ratchet.canary_deployer.gates.answer_pairs import Pair, judge_pairs, pair_of
from ratchet.canary_deployer.gates.base import Complete, GateGoesOn, LivePlace, LoggedPrompt, ShadowTools
from ratchet.canary_deployer.settings import FEWEST_MIRRORED, ShadowPlan
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.contract.turn import BY_AGENT, Sampling, Turn
from ratchet.core.datasets.domain.replay import prompt_of
from ratchet.core.errors import NotFound, Rejected, Unavailable
from ratchet.core.rules.bundles import METADATA, VARIABLES
from ratchet.core.rules.call_budget import BudgetSpent
from ratchet.core.rules.chat.format import ChatError, normal
from ratchet.core.rules.engines import ANY_ROLE

ALPHA, MARGIN, CONFIDENCE = 0.05, 0.1, 0.9
"""It passes where the lower bound of the difference is above minus the margin, as a safety suite does: a canary, which
sees smaller differences, follows. Else it fails where so few equal policies would look as bad."""
ROUND, AT_A_TIME = 16, 4
"""Calls that are mirrored in one round, and at the same time: the engine serves users meanwhile."""
WAIT_S = 10.0
"""For calls, in one round."""
LONGEST_PAUSE_S = 60.0
"""Between rounds while the candidate's engine is away, or the day's money is spent."""
MOST_PROMPTS = 64 * 1024 * 1024
"""Bytes of all prompts that are kept for the judgement."""
KEPT_S = 3600.0
"""A candidate that was not checked for so long has gone: what was kept of it is dropped."""
NO_SHAPE = frozenset(
    {
        "conversation",
        "include",
        "logprobs",
        "model",
        "n",
        "previous_response_id",
        "prompt_cache_key",
        "service_tier",
        "store",
        "top_logprobs",
        METADATA,
        VARIABLES,
    }
)
"""Members of a request that do not shape its answer: the candidate is not asked with them."""
LEFT_OUT = "left_out"
"""The parameter in which a turn names members that it was too small for."""
NOT_CONFIGURED = "no live call was mirrored: give the role a plan in RATCHET_CANARY_SHADOW_TRAFFIC"


class _Mirrored(NamedTuple):
    """A pair, and the place of its call in the stream."""

    sequence: int
    pair: Pair
    size: int


@dataclass
class _Mirror:
    """A candidate beside stable, as far as it has come."""

    candidate: PolicyVersion
    stable: PolicyVersion
    plan: ShadowPlan
    complete: Complete
    place: LivePlace
    began: float
    sample: LiveSample
    touched: float = 0.0
    mirrored: list[_Mirrored] = field(default_factory=list[_Mirrored])
    requests: set[str] = field(default_factory=set[str])
    """Digests of those: an agent that asks the same each time counts once."""
    away: int = 0
    """Rounds, one after the other, in which the candidate's engine was away."""
    spent: bool = False
    """The day's money was, in the last round."""

    @property
    def progress(self) -> str:
        """For operators."""
        done = f"mirroring {len(self.mirrored)} of {self.plan.calls} calls"
        if self.spent:
            return f"{done}; {self.plan.usd_per_day:g} US dollars are spent today"
        return f"{done}; its engine does not answer" if self.away else done


@dataclass
class ShadowTrafficGate:
    """Mirrors live calls where a role's plan asks for it. It refuses what is shown to be worse, and asks in doubt."""

    tools: ShadowTools | None
    monotonic: Callable[[], float] = time.monotonic
    _mirrors: dict[str, _Mirror] = field(default_factory=dict[str, _Mirror])
    """By role."""

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Raises `GateGoesOn` until enough calls were mirrored, or time is over."""
        tools = self.tools
        plan = tools and (tools.plans.get(candidate.role) or tools.plans.get(ANY_ROLE))
        if tools is None or plan is None:
            return GateResult(SHADOW_TRAFFIC, NOT_RUN, NOT_CONFIGURED)
        if stable is None:
            return GateResult(SHADOW_TRAFFIC, NEEDS_APPROVAL, "there is no stable policy to compare with")
        self._drop_gone(candidate.role)
        try:
            mirror = await self._mirror_of(tools, plan, candidate, stable)
            is_over = self.monotonic() - mirror.began >= 3600 * plan.hours
            if not is_over:
                await _mirror_round(tools, mirror)
            is_over = is_over or len(mirror.mirrored) >= plan.calls or _bytes(mirror) >= MOST_PROMPTS
            result = await _verdict(tools, mirror, self.monotonic()) if is_over else None
        except Rejected as error:
            return GateResult(SHADOW_TRAFFIC, NEEDS_APPROVAL, str(error))
        except asyncio.CancelledError:
            self._mirrors.pop(candidate.role, None)
            raise
        if result is None:
            raise GateGoesOn(mirror.progress, _pause_s(mirror))
        del self._mirrors[candidate.role]
        return result

    async def _mirror_of(
        self, tools: ShadowTools, plan: ShadowPlan, candidate: PolicyVersion, stable: PolicyVersion
    ) -> _Mirror:
        """What is mirrored of this candidate, from now on where that is nothing yet."""
        mirror = self._mirrors.get(candidate.role)
        if mirror is None or (mirror.candidate.name, mirror.stable.name) != (candidate.name, stable.name):
            sample = LiveSample(f"shadow {candidate.name}", plan.share, stable.version)
            complete, place = await tools.complete_for(candidate, plan), await tools.calls.newest()
            mirror = _Mirror(candidate, stable, plan, complete, place, self.monotonic(), sample)
            self._mirrors[candidate.role] = mirror
        mirror.touched = self.monotonic()
        return mirror

    def _drop_gone(self, role: str) -> None:
        """Forget what agents asked of candidates of other roles that are checked no more."""
        since = self.monotonic() - KEPT_S
        for other in [name for name, mirror in self._mirrors.items() if name != role and mirror.touched < since]:
            del self._mirrors[other]


def _pause_s(mirror: _Mirror) -> float:
    return LONGEST_PAUSE_S if mirror.spent else min(LONGEST_PAUSE_S, 2.0**mirror.away - 1)


def _bytes(mirror: _Mirror) -> int:
    return sum(one.size for one in mirror.mirrored)


async def _mirror_round(tools: ShadowTools, mirror: _Mirror) -> None:
    """Read what has come since, and ask the candidate what was drawn of it."""
    since = await tools.calls.since(mirror.candidate.role, mirror.place, WAIT_S)
    mirror.place, sample = since.place, mirror.sample
    if since.made_anew:
        sample.forget()
    drawn = [sequences for call in since.calls if (sequences := sample.drawn(call)) is not None]
    most = min(ROUND, mirror.plan.calls - len(mirror.mirrored))
    due, beyond = drawn[:most], drawn[most:]
    sample.left_out["beyond_round"] += len(beyond)
    before, was_away = len(mirror.mirrored), sample.left_out["engine_away"]
    mirror.spent, room = False, asyncio.Semaphore(AT_A_TIME)

    async def ask(sequences: Sequence[int]) -> None:
        async with room:
            if not mirror.spent:
                await _mirror_call(tools, mirror, sequences)

    async with asyncio.TaskGroup() as group:
        for sequences in due:
            group.create_task(ask(sequences))
    if len(mirror.mirrored) > before:
        mirror.away = 0
    elif sample.left_out["engine_away"] > was_away:
        mirror.away = min(mirror.away + 1, 10)


async def _mirror_call(tools: ShadowTools, mirror: _Mirror, sequences: Sequence[int]) -> None:
    """Ask the candidate one call. What says nothing of the policy is left out; a call that it refuses has no answer."""
    left_out = mirror.sample.left_out
    try:
        turns = await tools.calls.turns(sequences)
    except NotFound:
        left_out["erased"] += 1
        return
    except Unavailable:
        left_out["unreadable"] += 1
        return
    prompt, stables = asked_again(turns), _message(turns[-1].response)
    if isinstance(prompt, LoggedPrompt) and turns[-1].request_digest in mirror.requests:
        prompt = "same_request"
    if isinstance(prompt, str) or stables is None:
        left_out[prompt if isinstance(prompt, str) else "unreadable_chat"] += 1
        return
    mirror.requests.add(turns[-1].request_digest)
    try:
        answer = _message(await mirror.complete(mirror.candidate, prompt))
    except Rejected:
        answer = None
    except Unavailable:
        left_out["engine_away"] += 1
        return
    except BudgetSpent:
        left_out["budget_spent"] += 1
        mirror.spent = True
        return
    pair = pair_of(prompt, (mirror.candidate, answer), (mirror.stable, stables))
    mirror.mirrored.append(_Mirrored(sequences[-1], pair, len(msgspec.json.encode(pair.prompt))))


def asked_again(turns: Sequence[Turn]) -> LoggedPrompt | str:
    """The prompt of the last of these calls as it was asked; why the candidate cannot be asked the same.

    Stable saw what redaction took out since, and what is not recorded: with that its answer would be another's.
    """
    called = turns[-1]
    if any(turn.redactions for turn in turns):
        return "redacted"
    if called.applied_by == BY_AGENT:
        return "composed_by_agent"
    parameters = {name: value for name, value in (called.parameters or {}).items() if name not in NO_SHAPE}
    if LEFT_OUT in parameters or (called.api not in (None, "chat") and (parameters or called.api == "completion")):
        return "other_request"
    prompt = prompt_of(turns, called.turn_id)
    if isinstance(prompt, str):
        return prompt
    return LoggedPrompt(
        turn_id=prompt.turn_id,
        trajectory_id=prompt.trajectory_id,
        messages=prompt.messages,
        tools=prompt.tools,
        sampling={name: getattr(prompt.sampling, name) for name in Sampling.__struct_fields__},
        metadata=prompt.metadata,
        parameters=parameters,
    )


def _message(answer: JsonObject | None) -> JsonObject | None:
    """An answer in one form, so that nothing but what it says tells the evaluator whose it is."""
    try:
        return None if answer is None else normal({"role": "assistant", **answer}, 0)
    except (ChatError, RecursionError):
        return None


async def _verdict(tools: ShadowTools, mirror: _Mirror, now: float) -> GateResult:
    """The result on what was mirrored and is not erased since."""
    gone = await tools.calls.erased([one.sequence for one in mirror.mirrored], mirror.place.made)
    mirror.sample.left_out["erased"] += len(gone)
    pairs = [one.pair for one in mirror.mirrored if one.sequence not in gone]
    evidence: JsonObject = {
        "calls": len(pairs),
        "seen": mirror.sample.seen,
        "share": mirror.plan.share,
        "left_out": dict(+mirror.sample.left_out),
        "seconds": round(now - mirror.began, 1),
    }
    if len(pairs) < FEWEST_MIRRORED:
        few = f"{len(pairs)} live calls mirrored in {(now - mirror.began) / 3600:.1f} hours, {FEWEST_MIRRORED} needed"
        return GateResult(SHADOW_TRAFFIC, NEEDS_APPROVAL, few, evidence)
    judged = await judge_pairs(tools.judge, mirror.candidate.role, pairs)
    evidence |= judged.evidence
    if judged.problem is not None:
        return GateResult(SHADOW_TRAFFIC, NEEDS_APPROVAL, judged.problem, evidence)
    comparison = compare(judged.differences, CONFIDENCE, MARGIN)
    evidence |= {**comparison.figures(), "p_worse": round(comparison.p_worse, 5)}
    outcome, words = NEEDS_APPROVAL, "cannot tell"
    if comparison.passed:
        outcome, words = PASSED, f"no worse than stable by {MARGIN:g}"
    elif comparison.p_worse <= ALPHA:
        outcome, words = FAILED, "worse than stable"
    return GateResult(SHADOW_TRAFFIC, outcome, f"{words} on mirrored calls: {comparison.sentence()}", evidence)
