"""Simulated rollouts through the fold of messages: retries of agents, repeated messages, revised rewards, restarts.

`canary_simulation` plays many rollouts at once on arrays, behind the fold. Here each rollout is played by itself, from
messages through `LiveStatistics` to the verdict, with everything around the outcomes that may go wrong and must change
nothing: a failed call that its agent repeats, every message redelivered at random, rewards revised to the opposite,
and a deployer that dies at random, finds its record as of its last save, and reads again what came after it.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from itertools import count

import msgspec

from ratchet.canary_deployer.domain.rollout import Rollout, State, Verdict
from ratchet.canary_deployer.domain.rollout_statistics import ChunkName, LiveStatistics, Statistics
from ratchet.canary_deployer.domain.rules import Rules, Stage
from ratchet.canary_deployer.domain.trajectories import Batch, Call, Chunk, Event, Opinion, Score, Started, Terms
from ratchet.canary_deployer.domain.verdicts import decide
from ratchet.core.contract.state import WeightStep
from tests.support.canary_simulation import Ends, ends_of, running_record


@dataclass(frozen=True)
class Disturbed:
    """Traffic under the worst habits of agents, broker and deployer."""

    failure: tuple[float, float]
    """Rates of stable and canary."""
    mean_s: tuple[float, float]
    """Durations of their trajectories."""
    seconds: float = 700.0
    look_s: float = 100.0
    stages: tuple[Stage, ...] = (Stage(0.2, 200, 20), Stage(0.5, 9e9, 20))
    horizon_s: float = 300.0
    retried: float = 0.1
    """Share of first calls that fail and are asked again, on both arms."""
    twice: float = 0.2
    """Share of messages that come again, up to 50 s later."""
    revised: float = 0.2
    """Share of rewards whose next revision says the opposite, up to 200 s later."""
    complaints: tuple[float, float] = (0.1, 0.1)
    """Share of trajectories of stable and canary of which their users complain, sooner or later than the horizon."""
    restarts: float = 0.3
    """Share of looks after which the deployer dies before it has saved."""

    def rules(self) -> Rules:
        """The rules of the rollout."""
        return Rules(stages=self.stages, horizon_s=self.horizon_s, lead_s=0.0, soak_s=0.0)


def play_messages(scene: Disturbed, *, rollouts: int, seed: int) -> Ends:
    """How each rollout ends, at one trajectory a second."""
    return ends_of([_Rollout(scene, seed + number).end() for number in range(rollouts)])


@dataclass
class _Saved:
    record: Rollout
    chunks: bytes = b"[]"
    unread: list[Event] = field(default_factory=list[Event])
    """The events after the record."""


def scheduled(record: Rollout, rules: Rules) -> Rollout:
    """The record with the weight of its stage, from now on."""
    step = WeightStep(at=record.created_at, weight=rules.stages[record.stage].weight)
    return msgspec.structs.replace(record, schedule=(*record.schedule, step))


class _Rollout:
    def __init__(self, scene: Disturbed, seed: int) -> None:
        self.scene, self.rules, self.draw = scene, scene.rules(), random.Random(seed)
        self.saved = _Saved(scheduled(running_record(), self.rules))
        self.coming: list[tuple[float, int, int, Event]] = []
        self.number = count()
        self.stage_s = 0.0
        self.watching = LiveStatistics(Statistics(), [], self.rules)

    def end(self) -> tuple[State, float, str]:
        """The state that it ends in, when, and why."""
        scene, now = self.scene, 0.0
        while now < scene.seconds + scene.horizon_s:
            if now < scene.seconds:
                for second in range(int(scene.look_s)):
                    self._starts(now + second)
            now += scene.look_s
            ended = self._look(now)
            if ended is not None:
                return ended
        return State.RUNNING, now, ""

    def _starts(self, at: float) -> None:
        """One trajectory, as messages that come in time."""
        draw, scene, record = self.draw, self.scene, self.saved.record
        weight = record.weight
        name, canary = f"t{next(self.number)}", draw.random() < weight
        arm, version = ("canary", 2) if canary else ("stable", 1)
        watch = record.statistics
        terms = Terms(**watch.centres, scale_ms=watch.latency_scale_ms)
        self._comes(at, 0, Started(name, at, arm, version, weight, record.rollout_id, terms))
        took = min(draw.expovariate(1 / scene.mean_s[canary]), scene.horizon_s - 1)
        answered = at + min(took, draw.uniform(0.1, 3.0))
        if draw.random() < scene.retried:
            self._comes(answered, 1, Call(name, answered, True, arm, version, True, None, False, at, answered))
            self._comes(answered, 1, Call(name, answered, False, arm, version, False, 900.0, False, answered, answered))
        else:
            self._comes(answered, 1, Call(name, answered, True, arm, version, False, 900.0, False, at, answered))
        failed = draw.random() < scene.failure[canary]
        reported_at = at + took
        self._comes(reported_at, 2, Score(name, reported_at, not failed, 0.0 if failed else 0.85, False))
        if draw.random() < scene.revised:
            later = reported_at + draw.uniform(0, 200)
            self._comes(later, 2, Score(name, later, failed, 0.85 if failed else 0.0, False))

        if draw.random() < scene.complaints[canary]:
            given = at + draw.expovariate(2 / scene.horizon_s)
            self._comes(given, 1, Opinion(name, given, bad=True))

    def _comes(self, at: float, kind: int, event: Event) -> None:
        """A message, and perhaps the same one again."""
        heapq.heappush(self.coming, (at, kind, next(self.number), event))
        if self.draw.random() < self.scene.twice:
            heapq.heappush(self.coming, (at + self.draw.uniform(0, 50), kind, next(self.number), event))

    def _look(self, now: float) -> tuple[State, float, str] | None:
        """Read what has come, decide; save, or die and read it again at the next look."""
        came: list[tuple[int, Event]] = []
        while self.coming and self.coming[0][0] <= now:
            _, kind, _, event = heapq.heappop(self.coming)
            came.append((kind, event))
        unread = [*self.saved.unread, *(event for _, event in sorted(came, key=lambda one: one[0]))]
        self.watching.fold(Batch(unread, now), self.saved.record.compared, self.rules)
        names = tuple(ChunkName(chunk.number, "x") for chunk in self.watching.window.chunks)
        watch = self.watching.record(self.saved.record.weight, names)
        record = msgspec.structs.replace(self.saved.record, statistics=watch, stage_age_s=now - self.stage_s)
        decision = decide(record, self.rules)
        if decision is None and self.draw.random() < self.scene.restarts:
            chunks = msgspec.json.decode(self.saved.chunks, type=list[Chunk])
            self.watching = LiveStatistics(self.saved.record.statistics, chunks, self.rules)
            self.saved.unread = unread
            return None
        if decision is not None and decision.verdict is Verdict.ADVANCE:
            settled = watch.canary.trajectories
            record = scheduled(msgspec.structs.replace(record, stage=record.stage + 1, stage_base=settled), self.rules)
            self.stage_s = now
        elif decision is not None:
            state = {Verdict.ROLL_BACK: State.ROLLED_BACK, Verdict.PROMOTE: State.PROMOTED}
            return state.get(decision.verdict, State.HELD), now, decision.reason
        self.saved = _Saved(record, msgspec.json.encode(self.watching.window.chunks))
        return None
