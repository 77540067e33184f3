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
for it. What a round knows stands in memory, until the verdict, or until the candidate is at its gates no more: a
deployer that restarts, or another that takes over, begins again with the calls that come then, so no call counts twice.
What was spent stands in the bucket `judge_spend`, and stays spent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.gating import SHADOW_TRAFFIC
from ratchet.canary_deployer.domain.live_calls import LiveSample
from ratchet.canary_deployer.domain.paired import compare
from ratchet.canary_deployer.domain.rollout import FAILED, NEEDS_APPROVAL, NOT_RUN, PASSED, GateResult
from ratchet.canary_deployer.gates.answer_pairs import Pair, judge_pairs, pair_of
from ratchet.canary_deployer.gates.base import Blocked, Complete, GateGoesOn, LivePlace, LoggedPrompt, ShadowTools
from ratchet.canary_deployer.settings import FEWEST_MIRRORED, ShadowPlan
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.contract.turn import BY_AGENT, Sampling, Turn
from ratchet.core.datasets.domain.replay import prompt_of
from ratchet.core.errors import DigestMismatch, NotFound, Rejected, Unavailable
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
PAUSE_S, IDLE_PAUSE_S = 1.0, 5.0
"""Between rounds, and after one in which nothing was mirrored: each step of the deployer reads and writes records."""
LONGEST_PAUSE_S = 60.0
"""Between rounds while the candidate's engine is away, or the day's money is spent."""
MOST_PROMPTS = 64 * 1024 * 1024
"""Bytes of all prompts that are kept for the judgement."""
MOST_UNANSWERED = 0.1
"""Of the calls that the candidate was asked: with more nothing shows that it answers at all, so it does not pass."""
NEUTRAL: Mapping[str, Collection[float]] = {
    "temperature": (1.0,),
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "repetition_penalty": (1.0,),
}
"""Values of sampling that a turn has also where no agent set them: they are not asked, so that a bundle's own hold."""
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
    stable_sets: Collection[str] = ()
    """Values of sampling that stable's bundle sets."""
    mirrored: list[_Mirrored] = field(default_factory=list[_Mirrored])
    requests: set[str] = field(default_factory=set[str])
    """Digests of those: an agent that asks the same each time counts once."""
    away: int = 0
    """Rounds, one after the other, in which the candidate's engine was away."""
    spent: bool = False
    """The day's money was, in the last round."""
    idle: bool = True
    """The last round mirrored nothing."""
    problem: str | None = None
    """Why the candidate cannot be asked at all."""

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
    _began: dict[tuple[str, str, str], float] = field(default_factory=dict[tuple[str, str, str], float])
    """By role, candidate and stable: when the gate was asked first. A mirror may come later, or never."""

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Raises `GateGoesOn` until enough calls were mirrored, or time is over."""
        tools = self.tools
        plan = tools and (tools.plans.get(candidate.role) or tools.plans.get(ANY_ROLE))
        if tools is None or plan is None:
            return GateResult(SHADOW_TRAFFIC, NOT_RUN, NOT_CONFIGURED)
        if stable is None:
            return GateResult(SHADOW_TRAFFIC, NEEDS_APPROVAL, "there is no stable policy to compare with")
        began = self._began.setdefault((candidate.role, candidate.name, stable.name), self.monotonic())
        is_late = self.monotonic() - began >= 3600 * plan.hours
        try:
            mirror = await self._mirror_of(tools, plan, candidate, stable)
        except (Rejected, NotFound, DigestMismatch) as error:
            return GateResult(SHADOW_TRAFFIC, NEEDS_APPROVAL, str(error))
        except Unavailable as error:
            if not is_late:
                raise
            return GateResult(SHADOW_TRAFFIC, NEEDS_APPROVAL, f"no live call mirrored in {plan.hours:g} hours: {error}")
        if not is_late:
            await _mirror_round(tools, mirror)
        if not (is_late or mirror.problem or _is_full(mirror)):
            raise GateGoesOn(mirror.progress, _pause_s(mirror))
        result = await _verdict(tools, mirror, self.monotonic())
        self._mirrors.pop(candidate.role, None)
        return result

    def forget(self, role: str) -> None:
        """See `Remembers`."""
        self._mirrors.pop(role, None)
        self._began = {key: at for key, at in self._began.items() if key[0] != role}

    async def _mirror_of(
        self, tools: ShadowTools, plan: ShadowPlan, candidate: PolicyVersion, stable: PolicyVersion
    ) -> _Mirror:
        """What is mirrored of this candidate, from now on where that is nothing yet."""
        mirror = self._mirrors.get(candidate.role)
        if mirror is None or (mirror.candidate.name, mirror.stable.name) != (candidate.name, stable.name):
            sample = LiveSample(f"shadow {candidate.name}", plan.share, stable.version)
            sets = _set_by(await tools.bundle_of(stable))
            complete, place = await tools.complete_for(candidate, plan), await tools.calls.newest()
            began = self._began[candidate.role, candidate.name, stable.name]
            mirror = _Mirror(candidate, stable, plan, complete, place, began, sample, sets)
            self._mirrors[candidate.role] = mirror
        return mirror


def _set_by(bundle: Bundle) -> frozenset[str]:
    values = (bundle.defaults, bundle.overrides)
    return frozenset(
        name for part in values if part for name in part.__struct_fields__ if getattr(part, name) is not None
    )


def _pause_s(mirror: _Mirror) -> float:
    if mirror.spent:
        return LONGEST_PAUSE_S
    return min(LONGEST_PAUSE_S, max(IDLE_PAUSE_S if mirror.idle else PAUSE_S, 2.0**mirror.away - 1))


def _is_full(mirror: _Mirror) -> bool:
    return len(mirror.mirrored) >= mirror.plan.calls or sum(call.size for call in mirror.mirrored) >= MOST_PROMPTS


async def _mirror_round(tools: ShadowTools, mirror: _Mirror) -> None:
    """Read what has come since, and ask the candidate what was drawn of it."""
    since = await tools.calls.since(mirror.candidate.role, mirror.place, WAIT_S)
    mirror.place, sample = since.place, mirror.sample
    if since.made_anew:
        sample.forget()
        sample.left_out["stream_made_anew"] += len(mirror.mirrored)
        mirror.mirrored.clear()  # whether they are erased meanwhile, nothing tells
        mirror.requests.clear()
    drawn = [sequences for call in since.calls if (sequences := sample.drawn(call)) is not None]
    most = min(ROUND, mirror.plan.calls - len(mirror.mirrored))
    due, beyond = drawn[:most], drawn[most:]
    sample.left_out["beyond_round"] += len(beyond)
    before, was_away = len(mirror.mirrored), sample.left_out["engine_away"]
    mirror.spent, room = False, asyncio.Semaphore(AT_A_TIME)

    async def ask(sequences: Sequence[int]) -> None:
        async with room:
            if not mirror.spent and mirror.problem is None:
                await _mirror_call(tools, mirror, sequences)

    async with asyncio.TaskGroup() as group:
        for sequences in due:
            group.create_task(ask(sequences))
    mirror.idle = len(mirror.mirrored) == before
    if not mirror.idle:
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
    prompt, stables = asked_again(turns, mirror.stable_sets), _message(turns[-1].response)
    if isinstance(prompt, LoggedPrompt) and turns[-1].request_digest in mirror.requests:
        prompt = "same_request"
    if isinstance(prompt, str) or stables is None:
        left_out[prompt if isinstance(prompt, str) else "unreadable_chat"] += 1
        return
    mirror.requests.add(turns[-1].request_digest)
    try:
        answer = _message(await mirror.complete(mirror.candidate, prompt))
    except (Blocked, BudgetSpent, NotFound, DigestMismatch, Unavailable) as error:
        _leave_out(mirror, error)
        return
    except Rejected:
        answer = None
    pair = pair_of(prompt, (mirror.candidate, answer), (mirror.stable, stables))
    mirror.mirrored.append(_Mirrored(sequences[-1], pair, len(msgspec.json.encode(pair.prompt))))


def _leave_out(mirror: _Mirror, error: Exception) -> None:
    """Note why a call that was asked has neither an answer nor a refusal."""
    left_out = mirror.sample.left_out
    if isinstance(error, Blocked):
        left_out["blocked"] += 1
    elif isinstance(error, BudgetSpent):
        left_out["budget_spent"] += 1
        mirror.spent = True
    elif isinstance(error, Unavailable):
        left_out["engine_away"] += 1
    else:
        mirror.problem = f"its bundle cannot be read: {error}"


def asked_again(turns: Sequence[Turn], stable_sets: Collection[str] = ()) -> LoggedPrompt | str:
    """The prompt of the last of these calls as it was asked; why the candidate cannot be asked the same.

    Stable saw what redaction took out since, and what is not recorded: with that its answer would be another's. Turns
    have sampling as stable's engine got it: what its bundle sets, in `stable_sets`, is not asked of the candidate.
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
        sampling={
            name: value
            for name in Sampling.__struct_fields__
            if (value := getattr(prompt.sampling, name)) is not None
            and name not in stable_sets
            and value not in NEUTRAL.get(name, ())
        },
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
    gone = await tools.calls.erased([call.sequence for call in mirror.mirrored], mirror.place.made)
    mirror.sample.left_out["erased"] += len(gone)
    pairs = [call.pair for call in mirror.mirrored if call.sequence not in gone]
    evidence: JsonObject = {
        "calls": len(pairs),
        "seen": mirror.sample.seen,
        "share": mirror.plan.share,
        "left_out": dict(+mirror.sample.left_out),
        "seconds": round(now - mirror.began, 1),
    }
    if mirror.problem is not None:
        return GateResult(SHADOW_TRAFFIC, NEEDS_APPROVAL, mirror.problem, evidence)
    if len(pairs) < FEWEST_MIRRORED:
        few = f"{len(pairs)} live calls mirrored in {(now - mirror.began) / 3600:.1f} hours, {FEWEST_MIRRORED} needed"
        return GateResult(SHADOW_TRAFFIC, NEEDS_APPROVAL, few, evidence)
    judged = await judge_pairs(tools.judge, mirror.candidate.role, pairs)
    evidence |= judged.evidence
    if judged.problem is not None:
        return GateResult(SHADOW_TRAFFIC, NEEDS_APPROVAL, judged.problem, evidence)
    comparison = compare(judged.differences, CONFIDENCE, MARGIN)
    evidence |= {**comparison.figures(), "p_worse": round(comparison.p_worse, 5)}
    unanswered = mirror.sample.left_out["engine_away"] + mirror.sample.left_out["blocked"]
    asked = len(mirror.mirrored) + unanswered
    outcome, words = NEEDS_APPROVAL, "cannot tell"
    if comparison.passed and unanswered > MOST_UNANSWERED * asked:
        words = f"{unanswered} of {asked} calls got no answer; else no worse than stable by {MARGIN:g}"
    elif comparison.passed:
        outcome, words = PASSED, f"no worse than stable by {MARGIN:g}"
    elif comparison.p_worse <= ALPHA and judged.unjudged:
        words = f"cannot tell, for {judged.unjudged} answers were not judged,"
    elif comparison.p_worse <= ALPHA:
        outcome, words = FAILED, "worse than stable"
    return GateResult(SHADOW_TRAFFIC, outcome, f"{words} on mirrored calls: {comparison.sentence()}", evidence)
