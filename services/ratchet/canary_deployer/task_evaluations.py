"""Plays the tasks of a file with a policy, pinned through the gateway: in no statistic and no training."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.paired import Played
from ratchet.canary_deployer.gates.base import HeldoutRun, OnAnswer
from ratchet.canary_deployer.replicas import Inconclusive
from ratchet.canary_deployer.task_sets import SearchedTasks
from ratchet.core.contract.policy_manifest import BUNDLE
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import ConfigError, DigestMismatch, NotFound, RatchetError, Rejected, Unavailable, Unreadable
from ratchet.core.evaluation.http_player import HttpPlayer, model_named
from ratchet.core.evaluation.playing import PAUSES_S, Plan, Try, play
from ratchet.core.evaluation.report import refused_tasks, score_by_task
from ratchet.core.evaluation.task_files import (
    MOST_BYTES,
    TaskFile,
    parse_tasks,
    read_task_file,
    task_digest,
)
from ratchet.core.service.files import write_whole
from ratchet.core.service.http_client import AsyncApiClient
from ratchet.core.stores.objects import Objects

log = structlog.get_logger()

SEED = 0
"""Draws the same tasks of a longer file for each policy."""
AT_A_TIME = 4
"""Tasks that are asked at the same time: the engine serves users meanwhile."""
MOST_ROUNDS = 5
"""After so many without a result, which have taken the deadline at least, a person is asked."""


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """Which tasks of which file, and how they are asked."""

    file: str
    """A path, or an `s3://` uri; of a suite its name."""
    tasks: int
    temperature: float
    samples: int = 1
    """Answers to each task where they are not greedy."""
    made: Callable[[], TaskFile] | None = None
    """Makes the tasks of a suite, in the place of a file."""
    deadline_s: float = 1800.0
    """Tasks that are not all answered by then show nothing: a person is asked, or they are played again."""
    pauses_s: tuple[float, ...] = PAUSES_S
    """Before a task is asked again after a fault of the engine."""


class HeldoutCache:
    """The results of policies, in files: the candidate of today is the stable policy of tomorrow's comparison.

    One file for each key; a key is everything that the results follow from.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, *key: object) -> Played | None:
        """The entry of a key; None for one that is missing or cannot be read, which costs a run."""
        path = self._path(key)
        try:
            return msgspec.json.decode(path.read_bytes(), type=Played)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("held-out cache entry ignored", path=str(path), reason=str(error))
            return None

    def write(self, played: Played, *key: object) -> None:
        """Complete or not at all. A full disk costs the cache, not the gate."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, msgspec.json.encode(played), durable=False)
        except OSError as error:
            log.warning("held-out results not cached", path=str(path), reason=str(error))

    def _path(self, key: tuple[object, ...]) -> Path:
        return self._folder / f"{hashlib.sha256(repr(key).encode()).hexdigest()}.json"


class Doubts:
    """Rounds of a policy that brought no result, one after the other: a person is asked in the end."""

    def __init__(self, limit_s: float, monotonic: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._monotonic = monotonic
        self._rounds: dict[str, tuple[int, float]] = {}
        """By policy: how many, and when the first one began."""

    def add(self, policy: PolicyVersion, begun: float) -> tuple[int, float, bool]:
        """A round that began then: how many there are, their seconds, and whether they are enough to ask a person."""
        rounds, first = self._rounds.get(policy.name, (0, begun))
        rounds, took_s = rounds + 1, self._monotonic() - first
        self._rounds[policy.name] = rounds, first
        is_over = rounds >= MOST_ROUNDS and took_s >= self._limit_s
        if is_over:
            self.forget(policy)
        return rounds, took_s, is_over

    def forget(self, policy: PolicyVersion) -> None:
        """It has a result."""
        self._rounds.pop(policy.name, None)


def no_result(rounds: int, took_s: float, why: str) -> HeldoutRun:
    """What a person is asked about."""
    return _problem(f"played {rounds} times in {took_s:.0f} s without a result: {why}", took_s)


class TaskFileHeldout:
    """`Heldout`. A fault of gateway or engine is `Inconclusive`: the deployer plays again, each time later.

    That has an end: a policy that never ends its answers looks like an engine that is at fault, and a person can tell.
    """

    def __init__(
        self,
        plan: TaskPlan,
        gateway: AsyncApiClient,
        objects: Objects,
        cache: HeldoutCache,
        monotonic: Callable[[], float] = time.monotonic,
        searched: SearchedTasks | None = None,
    ) -> None:
        """`searched`: the tasks that candidates were made from; None where that is not looked at."""
        self._plan = plan
        self._searched = searched
        self._gateway = gateway
        self._objects = objects
        self._cache = cache
        self._monotonic = monotonic
        self.tasks = plan.tasks
        self._doubts = Doubts(plan.deadline_s, monotonic)

    async def unfit(self, policy: PolicyVersion) -> str | None:
        """See `Heldout`. Tasks may have been added since it was made."""
        if self._searched is None or isinstance(tasks := await self._file(), HeldoutRun):
            return None
        try:
            known = await self._searched.behind(policy)
        except (NotFound, DigestMismatch, Rejected, Unreadable) as error:
            return f"it cannot be seen which tasks {policy.name} was made from: {error}"
        shared = [task.task.id for task in tasks.tasks if task_digest(task.task) in known]
        return f"{policy.name} was made from {len(shared)} of its tasks, such as {shared[0]!r}" if shared else None

    async def play(self, policy: PolicyVersion) -> HeldoutRun:
        """See `Heldout`. A file that is missing or wrong is a problem, which a person has to solve."""
        tasks = await self._file()
        if isinstance(tasks, HeldoutRun):
            return tasks
        unfit = await self.unfit(policy)
        return await self._play(policy, tasks) if unfit is None else _problem(unfit, 0.0)

    async def play_or_recall(self, policy: PolicyVersion, on_answer: OnAnswer | None = None) -> HeldoutRun:
        """See `Heldout`: the same policy, tasks, seed, number and temperature were played before, and the same model
        answered."""
        tasks = await self._file()
        if isinstance(tasks, HeldoutRun):
            return tasks
        known = await self._recalled(policy, tasks)
        return known if known is not None else await self._play(policy, tasks, on_answer)

    async def due(self, policy: PolicyVersion) -> int:
        """See `Heldout`. Of tasks that cannot be read none is played."""
        tasks = await self._file()
        if isinstance(tasks, HeldoutRun) or await self._recalled(policy, tasks) is not None:
            return 0
        return min(len(tasks.tasks), self._plan.tasks) * len(self._how.draws)

    async def _recalled(self, policy: PolicyVersion, file: TaskFile) -> HeldoutRun | None:
        by = await self._answering(policy)
        known = await asyncio.to_thread(self._cache.read, *self._key(policy, file, by)) if by is not None else None
        return None if known is None else HeldoutRun(known, 0.0, cached=True, source=_source(file))

    @property
    def _how(self) -> Plan:
        plan, greedy = self._plan, self._plan.temperature == 0
        return Plan(
            greedy=greedy, samples=0 if greedy else plan.samples, temperature=plan.temperature, at_once=AT_A_TIME
        )

    async def _play(self, policy: PolicyVersion, file: TaskFile, on_answer: OnAnswer | None = None) -> HeldoutRun:
        plan, begun, by = self._plan, self._monotonic(), await self._answering(policy)
        drawn = file.drawn(plan.tasks, SEED)
        player = HttpPlayer(self._gateway, policy.name, policy.name)
        faults: list[str] = []

        def note(done: Try) -> None:
            """Those before a deadline count too."""
            if done.fault is not None:
                faults.append(done.fault)
            elif on_answer is not None:
                on_answer()

        try:
            async with asyncio.timeout(plan.deadline_s):
                tries = await play(player, drawn, self._how, note, clock=self._monotonic, pauses_s=plan.pauses_s)
        except Unavailable as error:
            return self._no_result(policy, begun, str(error))
        except TimeoutError:
            late = f"not all tasks were answered after {plan.deadline_s:g} s"
            if faults:
                return self._no_result(policy, begun, f"{late}, and {len(faults)} got no answer: {faults[0]}")
            return _problem(late, self._monotonic() - begun)
        except (NotFound, Rejected) as error:  # the gateway does not know the policy yet, or not the deployer's key
            return self._no_result(policy, begun, f"the gateway does not ask {policy.name}: {error}")
        if faults:
            return self._no_result(policy, begun, f"{len(faults)} of {len(tries)} tasks got no answer: {faults[0]}")
        self._doubts.forget(policy)
        played = Played(
            scores=score_by_task(tries),
            tries=len(tries),
            successes=sum(done.success for done in tries),
            calls=sum(done.calls for done in tries),
            valid_calls=sum(done.valid_calls for done in tries),
            refused=frozenset(refused_tasks(tries)),
            seconds=self._monotonic() - begun,
        )
        problem = _misgraded(tries)
        if problem is None and by is not None and by == await self._answering(policy):
            await asyncio.to_thread(self._cache.write, played, *self._key(policy, file, by))
        return HeldoutRun(played, self._monotonic() - begun, problem, source=_source(file))

    def _no_result(self, policy: PolicyVersion, begun: float, why: str) -> HeldoutRun:
        """A problem for a person, after `MOST_ROUNDS` and the deadline. Raises `Inconclusive` before: play again."""
        rounds, took_s, is_over = self._doubts.add(policy, begun)
        if not is_over:
            raise Inconclusive(f"the tasks show nothing yet: {why}", rounds)
        return no_result(rounds, took_s, why)

    async def _file(self) -> TaskFile | HeldoutRun:
        try:
            return await asyncio.to_thread(self._plan.made or self._read_file)
        except (NotFound, Rejected, ConfigError) as error:
            return _problem(str(error), 0.0)

    def _read_file(self) -> TaskFile:
        place = self._plan.file
        if place.startswith("s3://"):
            return parse_tasks(self._objects.get_part(place, 0, MOST_BYTES + 1), place)
        return read_task_file(Path(place))

    async def _answering(self, policy: PolicyVersion) -> str | None:
        """The model that answers a bundle which names none, as the gateway says; None where that is not known. Of any
        other policy its digest says who answers."""
        if policy.kind != BUNDLE or policy.base_model:
            return policy.base_model
        try:
            return (await model_named(self._gateway, policy.name)).answered_by
        except RatchetError as error:
            log.info("who answers is not known", policy=policy.name, reason=str(error))
            return None

    def _key(self, policy: PolicyVersion, file: TaskFile, by: str) -> tuple[object, ...]:
        more = (self._plan.samples,) if self._plan.samples > 1 else ()
        return (policy.role, policy.digest, by, self._plan.tasks, file.digest, self._plan.temperature, *more)


def _misgraded(tries: Sequence[Try]) -> str | None:
    wrong = next((done for done in tries if not 0 <= done.score <= 1), None)
    return f"the grader of task {wrong.task!r} gives {wrong.score}, which is no score" if wrong else None


def _source(file: TaskFile) -> JsonObject:
    return {"tasks_file": file.name, "tasks_digest": file.digest}


def _problem(why: str, seconds: float) -> HeldoutRun:
    return HeldoutRun(Played(), seconds, why)
