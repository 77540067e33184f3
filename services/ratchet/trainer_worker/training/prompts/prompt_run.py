"""A search inside its process: asks, plays, records what it cost, and writes the best bundle and its documents."""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import threading
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import closing, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import msgspec

from ratchet.bus.message import JsonObject, Value, decode
from ratchet.core.contract.bundle import NO_BUNDLE, Bundle
from ratchet.core.contract.evaluation_task import Task
from ratchet.core.contract.policy_manifest import BUNDLE
from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.core.datasets.parquet import read_rows
from ratchet.core.errors import ConfigError, NotFound, Rejected, Unavailable
from ratchet.core.evaluation.http_player import HttpPlayer
from ratchet.core.evaluation.playing import Answer, Plan, Player, Try, play
from ratchet.core.evaluation.search_models import SearchPrices, reflector_name, search_prices
from ratchet.core.evaluation.task_files import GradedTask, parse_tasks, task_digest
from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.core.rules.bundles import check_bundle
from ratchet.core.rules.call_budget import NOTHING, Amounts, BudgetSpent, limit_of
from ratchet.core.service.http_client import AsyncApiClient
from ratchet.core.service.paid_client import PaidClient
from ratchet.trainer_worker.child_process import KEY_VARIABLE
from ratchet.trainer_worker.errors import NothingBetter, SearchFailed, StopRequested
from ratchet.trainer_worker.job import (
    BUNDLE_FILE,
    CHECKPOINTS,
    DOCUMENTS,
    METRICS_FILE,
    RESULT,
    STORED,
    Event,
    Finished,
    JobSpec,
    Progressed,
    Saved,
    SearchSpec,
    Started,
    Stopped,
    encode_event,
)
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.checkpoints import CheckpointStore, open_checkpoint
from ratchet.trainer_worker.training.prompts.base import Played, Search, SearchJob
from ratchet.trainer_worker.training.prompts.budget import Ledger
from ratchet.trainer_worker.training.prompts.gateway_models import composed, gateway_peer, reflection
from ratchet.trainer_worker.training.prompts.known_answers import KnownAnswers, bundle_digest, json_lines

LEDGER = "ledger.json"
"""File of a checkpoint beside those of `KnownAnswers`: what was used or may be used until the next one."""
GREETING = "Answer with the word `ready`, and nothing else."
"""The first question to a reflector: one that is not there ends a search before it has cost more."""
CANDIDATES, CONFIG = "candidates.jsonl", "config.json"
POLL_S = 0.1
"""Between looks at whether a stop was asked for, and whether a checkpoint is stored."""
AT_ONCE = 4
"""Tasks that are asked at the same time: the role's engine serves users meanwhile."""

T = TypeVar("T")


class Candidate(Value, frozen=True, kw_only=True):
    """A line of `candidates.jsonl`."""

    candidate: int
    parents: list[int]
    score: float
    """Mean over the validation tasks."""
    scores: dict[str, float]
    """By validation task."""
    calls: int
    """That were charged when it was scored."""
    bundle: Bundle


def train(spec: JobSpec, directory: Path, events: BinaryIO, stop: threading.Event, begun: threading.Event) -> Event:
    """Search, and leave the best bundle and the documents in the job's directory. `begun` is set before the first call:
    from then on a stop leaves a checkpoint."""
    with closing(PromptRun(spec, directory, events, stop, begun)) as run:
        try:
            job = search_job(spec)
            find = cast("Search", load_train(spec.config.algorithm))
            run.started(len(job.train) + len(job.validation) + len(job.recorded))
            with suppress(BudgetSpent):
                run.meet_models()
                find(job, run)
        except StopRequested:
            run.keep()
            return Stopped(step=run.calls())
        except (Rejected, NotFound) as error:
            raise SearchFailed(str(error)) from error
        return run.finished(job)


def search_job(spec: JobSpec) -> SearchJob:
    """What the job's files hold. Raises `Rejected`."""
    given, config = _given(spec), spec.config
    recorded = list(read_rows(Path(spec.dataset), TrajectoryRow, without=("calls", "sequences", "spans")))
    train_tasks, validation = (
        parse_tasks(Path(file).read_bytes(), name).tasks
        for file, name in ((given.train, "train_tasks"), (given.validation, "validation_tasks"))
    )
    batch = ALGORITHMS[config.algorithm].default_batch_size
    return SearchJob(given.start, train_tasks, validation, recorded, config.hyperparameters, batch)


class PromptRun:
    """`base.SearchRun`: events go to the worker, checkpoints below the job's directory."""

    def __init__(
        self, spec: JobSpec, directory: Path, events: BinaryIO, stop: threading.Event, begun: threading.Event
    ) -> None:
        assert spec.config.prompts is not None  # noqa: S101 - a request without it is refused
        self._spec, self._search, self._given = spec, spec.config.prompts, _given(spec)
        self._directory = directory
        self._events = events
        self._stop = stop
        self._begun = begun
        self._metrics = (directory / METRICS_FILE).open("a", buffering=1)
        self._store = CheckpointStore(
            directory / CHECKPOINTS, spec.training_job_id, spec.attempt, spec.config.algorithm
        )
        self._known = KnownAnswers()
        self._prices = SearchPrices(None, None)
        self._candidates: list[Candidate] = []
        self._step = 0
        self._ledger = Ledger(limit_of(self._search.budget), self._resumed(), self._lease)
        self._runner = asyncio.Runner()
        key = os.environ.get(KEY_VARIABLE)
        self._role = AsyncApiClient(gateway_peer(self._given.gateway, key, self._given.composed_by))
        self._reflector = AsyncApiClient(gateway_peer(self._given.gateway, key))

    def close(self) -> None:
        """Close connections and files."""

        async def close() -> None:
            await self._role.close()
            await self._reflector.close()

        self._runner.run(close())
        self._runner.close()
        self._metrics.close()

    def started(self, samples: int) -> None:
        """Tasks and data are read."""
        self._emit(Started(samples=samples, total_steps=self._search.budget.calls))
        self._begun.set()

    def meet_models(self) -> None:
        """Learn what their tokens cost, and have the reflector answer. Raises `Rejected` for one that the gateway does
        not know, and for a price that is missing."""
        asked = search_prices(self._reflector, self._search, self._spec.role, self._given.model)
        self._prices = self._within(asked)
        self.reflect(GREETING)

    def calls(self) -> int:
        return int(self._ledger.charged.calls)

    def play(self, bundle: Bundle, tasks: Sequence[GradedTask]) -> list[Played]:
        """See `SearchRun`."""
        candidate = bundle_digest(bundle)
        unknown = [task for task in tasks if (candidate, task_digest(task.task)) not in self._known.tries]
        if unknown:
            try:
                if bundle != NO_BUNDLE:
                    check_bundle(bundle)
            except Rejected as error:
                return [Played(score=0.0, why=f"the bundle can answer no call: {error}") for _ in tasks]
            self._within(self._play(bundle, candidate, unknown))
        return [self._known.tries[candidate, task_digest(task.task)] for task in tasks]

    async def _play(self, bundle: Bundle, candidate: str, tasks: Sequence[GradedTask]) -> None:
        client = PaidClient(self._role, self._ledger, self._prices.answers, composed(bundle))
        watched = _Watched(HttpPlayer(client, self._given.model, self._given.model if self._given.pinned else None))
        by_id = {task.task.id: task_digest(task.task) for task in tasks}

        def keep(done: Try) -> None:
            if done.fault is None:
                played = Played(score=done.score, why=done.why, messages=watched.transcripts.get(done.task, []))
                self._known.tries[candidate, by_id[done.task]] = played
                self._report()

        tries = await play(watched, tasks, Plan(at_once=AT_ONCE), keep, clock=time.monotonic)
        fault = next((done.fault for done in tries if done.fault is not None), None)
        if fault is not None:
            raise Unavailable(f"{self._given.model} does not answer: {fault}")

    def reflect(self, prompt: str) -> str:
        """See `SearchRun`."""
        key, text = self._known.next_reflection(prompt)
        if text is None:
            client = PaidClient(self._reflector, self._ledger, self._prices.reflector)
            asked = reflector_name(self._spec.role, self._search.reflector)
            text = self._within(reflection(client, asked, prompt))
            self._known.reflected(key, text)
        self._report()
        return text

    def scored(self, bundle: Bundle, parents: Sequence[Bundle], scores: Mapping[str, float]) -> None:
        """See `SearchRun`."""
        self._candidates.append(
            Candidate(
                candidate=len(self._candidates),
                parents=[one.candidate for one in self._candidates if one.bundle in parents],
                score=statistics.fmean(scores.values()),
                scores=dict(scores),
                calls=self.calls(),
                bundle=bundle,
            )
        )
        line = {"step": self.calls(), **self._figures()}
        self._metrics.write(msgspec.json.encode(line).decode() + "\n")
        self._report()

    def keep(self) -> None:
        """Leave a checkpoint that names exactly what was used."""
        self._save(self._ledger.charged)

    def finished(self, job: SearchJob) -> Finished:
        """Write the best candidate and the documents. Raises `NothingBetter`."""
        self._report()
        if not self._candidates:
            raise NothingBetter("the budget ended before the start was scored on all validation tasks: give it more")
        best = max(self._candidates, key=lambda one: (one.score, -one.candidate))
        if best.candidate == 0:
            others = len(self._candidates) - 1
            raise NothingBetter(
                f"none of {others} further candidates did better on the validation tasks than what serves the role"
                f" ({best.score:.3f}) within {self.calls()} calls"
            )
        result, documents = self._directory / RESULT, self._directory / DOCUMENTS
        result.mkdir()
        # What it was played with answers for it, whatever serves the role by now.
        bundle = msgspec.structs.replace(best.bundle, model=job.start.model)
        (result / BUNDLE_FILE).write_bytes(msgspec.json.encode(bundle))
        documents.mkdir()
        (documents / CANDIDATES).write_bytes(json_lines(self._candidates))
        (documents / CONFIG).write_bytes(msgspec.json.format(msgspec.json.encode(self._configuration()), indent=1))
        return Finished(
            directory=str(result),
            kind=BUNDLE,
            samples=len(job.train) + len(job.recorded),
            metrics=self._figures(),
            peak_memory_gb=0.0,
        )

    def _configuration(self) -> JsonObject:
        spec = self._spec
        versions: dict[str, str | None] = {"python": platform.python_version()}
        for package in ("ratchet-rl", "gepa"):
            try:
                versions[package] = version(package)
            except PackageNotFoundError:
                versions[package] = None
        return {
            "algorithm": spec.config.algorithm,
            "role": spec.role,
            "training_job_id": spec.training_job_id,
            "attempt": spec.attempt,
            "start": self._given.model,
            "dataset": msgspec.to_builtins(spec.config.dataset),
            "prompts": msgspec.to_builtins(self._search),
            "hyperparameters": msgspec.to_builtins(spec.config.hyperparameters),
            "versions": versions,
        }

    def _within(self, work: Awaitable[T]) -> T:
        """The result of `work`, which a stop ends at once. Raises `StopRequested`, and what `work` raises."""

        async def watched() -> T:
            task = asyncio.ensure_future(work)
            while not task.done():
                if self._stop.is_set():
                    task.cancel()
                    await asyncio.wait([task])
                    raise StopRequested
                await asyncio.wait([task], timeout=POLL_S)
            return await task

        return self._runner.run(watched())

    async def _lease(self, lease: Amounts) -> None:
        """Save what may be used until the next checkpoint, and wait until the coordinator knows of it."""
        step = self._save(lease)
        while not _is_stored(self._directory / STORED, step):  # noqa: ASYNC110 - another process writes the file
            await asyncio.sleep(POLL_S)

    def _save(self, lease: Amounts) -> int:
        self._step += 1

        def write(directory: Path) -> None:
            (directory / LEDGER).write_bytes(msgspec.json.encode(lease))
            self._known.write(directory)

        begun = time.monotonic()
        checkpoint = self._store.save(self._step, float(self._step), write)
        took_s = time.monotonic() - begun
        self._report()
        self._emit(Saved(directory=str(checkpoint.directory), step=self._step, took_s=took_s))
        return self._step

    def _resumed(self) -> Amounts:
        """What earlier attempts are charged with; takes in what need not be asked again."""
        if self._spec.resume is None:
            return NOTHING
        checkpoint = open_checkpoint(Path(self._spec.resume), self._spec.training_job_id, self._spec.config.algorithm)
        self._step = checkpoint.manifest.step
        self._known.read(checkpoint.directory)
        return decode((checkpoint.directory / LEDGER).read_bytes(), Amounts)

    def _figures(self) -> dict[str, float]:
        charged = self._ledger.charged
        best = {"validation_score": max(one.score for one in self._candidates)} if self._candidates else {}
        return {
            **best,
            "candidates": len(self._candidates),
            "calls": self.calls(),
            "spent_tokens": int(charged.tokens),
            "spent_usd": charged.usd,
        }

    def _report(self) -> None:
        self._emit(
            Progressed(
                step=self.calls(),
                total_steps=self._search.budget.calls,
                epoch=0,
                total_epochs=1,
                eta_s=0.0,
                longest_step_s=0.0,
                metrics=self._figures(),
            )
        )

    def _emit(self, event: Event) -> None:
        self._events.write(encode_event(event))
        self._events.flush()


class _Watched:
    """`Player` that remembers each task's conversation."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self.transcripts: dict[str, list[JsonObject]] = {}

    async def answer(self, task: Task, temperature: float, seed: int, trajectory_id: str) -> Answer:
        answer = await self._player.answer(task, temperature, seed, trajectory_id)
        self.transcripts[task.id] = [*task.messages, answer.message or {"role": "assistant", "content": ""}]
        return answer


def _given(spec: JobSpec) -> SearchSpec:
    if spec.search is None:
        raise ConfigError(f"{spec.config.algorithm} searches for a bundle, and the job names no tasks")
    return spec.search


def _is_stored(file: Path, step: int) -> bool:
    try:
        return int(file.read_text()) >= step
    except (FileNotFoundError, ValueError):
        return False
