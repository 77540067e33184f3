"""Rewards -> judgements: the role's judge is asked beside the rewards, and what it says is feedback like any other.

Nothing waits for a judge: a reward goes out without it, and its judgement makes the next revision. A judge that is
away is asked again for `patience` after the reward; then the trajectory stays unjudged, as one does that the day's
budget has no room for. The id of a judgement follows from trajectory, judge and text, so that a trajectory is judged
once, and once more when it was published again with more in it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog

from ratchet.bus.consumer import Done, Outcome, Retry
from ratchet.bus.received import Received
from ratchet.bus.tasks import end
from ratchet.core.contract import Feedback, Reward, named_id
from ratchet.core.contract.reward import JUDGEMENT, JudgeRef
from ratchet.core.errors import BadRequest, NotFound, RatchetError, Rejected, Unavailable
from ratchet.core.judging.chat_judge import ChatJudge, Verdict
from ratchet.core.judging.questions import WORDS, transcript
from ratchet.core.preferences.clickhouse_tries import Tries
from ratchet.core.preferences.rules.base import Try
from ratchet.core.preferences.teacher import DISAGREED, REFUSED, SPENT, UNDECIDED, in_both_orders
from ratchet.core.rules.call_budget import BudgetSpent
from ratchet.core.rules.redaction import redact_message, redacted
from ratchet.reward_computer import metrics
from ratchet.reward_computer.clickhouse_facts import Facts, Key
from ratchet.reward_computer.kv_functions import InForce
from ratchet.reward_computer.model_notes import ModelNotes

log = structlog.get_logger()

PEERS = timedelta(days=30)
"""Tries of a task that were stored longer ago are not compared with a new one."""
PAUSE_S = 10.0
"""Before a judge that is away, or turns stored late, are looked for again."""
LONGEST_PAUSE_S = 320.0
"""An hour without the judge takes some fifteen calls of its budget, however many trajectories wait."""


@dataclass(frozen=True, slots=True)
class _Pause:
    """A judge that did not answer is not asked until then, and after it about one trajectory."""

    until: datetime
    length_s: float


@dataclass(frozen=True)
class Judging:
    """The handler, and what the recomputation of history asks of judges."""

    functions: InForce
    judges: Mapping[str, ChatJudge]
    """By the digest of their profile: those that this process can ask."""
    facts: Facts
    tries: Tries
    now: Callable[[], datetime]
    patience: timedelta
    notes: ModelNotes
    _pauses: dict[str, _Pause] = field(default_factory=dict[str, _Pause], init=False)
    """By digest, of the judges that did not answer last."""
    _stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self) -> None:
        """Nothing, until stopped: the consumer asks."""
        await self._stopping.wait()

    async def stop(self) -> None:
        """Leave the judges that have not answered: a service that stops waits for none of them."""
        self._stopping.set()

    async def is_needed(self) -> bool:
        """Whether the function in force asks a judge about any role. Raises `BusUnavailable`."""
        return (await self.functions.in_force()).asks_judges

    async def judgements(self, batch: Sequence[Received[Reward]]) -> Sequence[Outcome]:
        """Judge the trajectories of rewards. Raises `Unavailable` where ClickHouse or the broker is away."""
        spec = await self.functions.in_force()
        digests: dict[Key, str] = {}
        for received in batch:
            reward = received.message
            is_ours = reward.reward_function == spec.function and not reward.recomputed
            profile = spec.judge_of(reward.role) if is_ours else None
            if profile is not None:
                digests[reward.role, reward.trajectory_id] = profile.digest
        if not digests:
            return [Done() for _ in batch]
        texts = await self.texts(list(digests))
        known = await self.facts.feedback(digests)
        judged = {key: {opinion.feedback_id for opinion in opinions} for key, opinions in known.items()}

        async def outcome(received: Received[Reward]) -> Outcome:
            key = (received.message.role, received.message.trajectory_id)
            if key not in digests:
                return Done()
            return await self._outcome(received, digests[key], texts.get(key), judged.get(key, set()))

        return await asyncio.gather(*map(outcome, batch))

    async def texts(self, keys: Sequence[Key]) -> Mapping[Key, Try]:
        """The trajectories that can be read, with their texts."""
        by_role: defaultdict[str, list[Try]] = defaultdict(list)
        for role, trajectory_id in keys:
            by_role[role].append(Try(trajectory_id=trajectory_id, role=role, task_key=""))
        readable = [await self.tries.with_texts(role, tries) for role, tries in by_role.items()]
        return {(tried.role, tried.trajectory_id): tried for tries, _ in readable for tried in tries}

    async def _outcome(self, received: Received[Reward], digest: str, tried: Try | None, judged: set[str]) -> Outcome:
        is_late = self.now() - received.time > self.patience
        if tried is None:
            return _counted("unreadable") if is_late else Retry("its turns are not stored yet", delay_s=PAUSE_S)
        # A judge's own calls are pinned: it never judges itself.
        if tried.is_left_out or judgement_id(tried, digest) in judged:
            return Done()
        if digest not in self.judges:
            return _counted("not_configured")
        if self._pauses.get(digest) and not self._may_ask_again(digest):
            return self._later(is_late)
        return await self._asked(self.judges[digest], tried, is_late)

    async def _asked(self, judge: ChatJudge, tried: Try, is_late: bool) -> Outcome:
        """What came of asking a judge."""
        digest, feedback, refuses = judge.profile.digest, None, False
        try:
            feedback = await self._until_stopped(self.judgement(judge, tried))
        except BudgetSpent:
            return _counted("budget_spent")
        except BadRequest:  # its words may repeat the conversation
            refuses = True
        except (Unavailable, NotFound, Rejected) as error:
            return self._unanswered(judge, error, is_late)
        self._pauses.pop(digest, None)
        if feedback is not None:
            self.notes.answered(digest)
            return _counted("judged", feedback)
        if refuses:
            self.notes.silent(digest, f"the judge {judge.name} refuses conversations, the last one too")
        elif not judge.profile.tries:  # else there may be no other try to compare this one with
            self.notes.silent(digest, f"the judge {judge.name} gives no verdict: its reply has no line SCORE: 0..1")
        return _counted("refused" if refuses else "no_verdict")

    async def _until_stopped(self, asking: Coroutine[Any, Any, Feedback | None]) -> Feedback | None:
        """What is asked for. Raises `Unavailable` where the service stops first."""
        answer, stopped = asyncio.create_task(asking), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({answer, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise Unavailable("the service stops")
            return answer.result()
        finally:
            await end(answer, stopped)

    def _unanswered(self, judge: ChatJudge, error: RatchetError, is_late: bool) -> Outcome:
        """Of a judge that gives no answer for now."""
        if self._stopping.is_set():
            return Retry("the service stops")
        self._pauses.setdefault(judge.profile.digest, _Pause(self.now() + timedelta(seconds=PAUSE_S), PAUSE_S))
        self.notes.silent(judge.profile.digest, f"the judge {judge.name} does not answer: {redacted(str(error))}")
        reason = error.for_log if isinstance(error, Unavailable) else type(error).__name__
        log.warning("a judge does not answer", reason=reason)
        return self._later(is_late)

    def _may_ask_again(self, digest: str) -> bool:
        """Whether a judge's pause is over; who hears so has to ask, and all others wait for the next one's end."""
        pause, now = self._pauses[digest], self.now()
        if now < pause.until:
            return False
        length_s = min(2 * pause.length_s, LONGEST_PAUSE_S)
        self._pauses[digest] = _Pause(now + timedelta(seconds=length_s), length_s)
        return True

    def _later(self, is_late: bool) -> Outcome:
        if is_late:
            return _counted("given_up")
        return Retry("its judge does not answer", delay_s=PAUSE_S, away=True)

    async def judgement(self, judge: ChatJudge, tried: Try) -> Feedback | None:
        """What the judge says of a try; None where it has no verdict, or nothing to compare the try with.

        Raises `BudgetSpent`, and what `ChatJudge.score` raises.
        """
        verdict = await (
            self._compared(judge, tried) if judge.profile.tries else judge.score(transcript(tried.messages))
        )
        if verdict is None:
            return None
        profile = judge.profile
        feedback = Feedback(
            feedback_id=judgement_id(tried, profile.digest),
            trajectory_id=tried.trajectory_id,
            kind=JUDGEMENT,
            at=self.now(),
            role=tried.role,
            value=verdict.score,
            user_ref=tried.user_ref,
            source="judge",
            rater=judge.name,
            reasoning=verdict.words or None,
            judge=JudgeRef(digest=profile.digest, rubric_digest=profile.rubric_digest, model=verdict.by),
        )
        return redact_message(feedback)[0]

    async def _compared(self, judge: ChatJudge, tried: Try) -> Verdict | None:
        """The share of earlier tries of its task that a try beats, each compared in both orders; a draw is one half."""
        earlier = await self.tries.earlier(tried, self.now() - PEERS, judge.profile.tries)
        readable, _ = await self.tries.with_texts(tried.role, earlier)
        ranked = [await in_both_orders(judge, tried, peer) for peer in readable]
        if any(ranking.better == SPENT for ranking in ranked):
            raise BudgetSpent
        worth = {tried.trajectory_id: 1.0, UNDECIDED: 0.5, DISAGREED: 0.5}
        decided = [
            (worth.get(ranking.better, 0.0), ranking.comparison) for ranking in ranked if ranking.better != REFUSED
        ]
        answers = [comparison for _, comparison in decided if comparison is not None]
        if not answers:
            return None
        words = "\n".join(f"Against an earlier try (B): {answer.words}" for answer in answers if answer.words)
        score = sum(won for won, _ in decided) / len(decided)
        return Verdict(score=score, words=words[:WORDS], by=answers[-1].by)


def judgement_id(tried: Try, judge: str) -> str:
    """The same judge says one thing of the same text."""
    text = hashlib.sha256(transcript(tried.messages).encode(errors="replace")).hexdigest()
    return named_id(JUDGEMENT, tried.role, tried.trajectory_id, judge, text)


def _counted(outcome: str, *events: Feedback) -> Done:
    metrics.JUDGEMENTS.labels(outcome).inc()
    return Done(events)
