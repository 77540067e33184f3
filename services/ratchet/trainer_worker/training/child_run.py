"""A training inside its process: loads, trains, writes the policy and its documents; and the `Run` of its algorithm."""

from __future__ import annotations

import math
import platform
import resource
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar, overload

import msgspec
import torch

from ratchet.core.contract.policy_manifest import REWARD_MODEL, Probe
from ratchet.core.contract.snapshot import ROWS, TRAJECTORIES, Row, TrajectoryRow
from ratchet.core.datasets.parquet import count_rows, read_rows
from ratchet.core.errors import Rejected
from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.core.rules.training_options import too_few_steps
from ratchet.core.stores.policies import TOKENIZER_FILES
from ratchet.trainer_worker.errors import DataUnusable, Diverged, StopRequested
from ratchet.trainer_worker.job import (
    CHECKPOINTS,
    DOCUMENTS,
    METRICS_FILE,
    RENDEZVOUS,
    RESULT,
    Event,
    Finished,
    JobSpec,
    Progressed,
    Saved,
    Started,
    Stopped,
    encode_event,
)
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.algorithms.base import Outcome, Run, TrainStep
from ratchet.trainer_worker.training.checkpoints import CheckpointStore, open_checkpoint
from ratchet.trainer_worker.training.policy import TrainedPolicy, load_policy, probe_policy, save_policy
from ratchet.trainer_worker.training.ranks import RankRun, Ranks, connected

SAVE_INTERVAL = 50
"""Default number of train steps between checkpoints."""

SAVING_SHARE = 0.1
"""The most of a training's time for checkpoints that only time makes due: those of a full fine-tune are large."""

PROGRESS_S = 0.2
"""Least time between two progress events; every train step is in the metrics file."""

CONFIG = "config.json"
PACKAGES = ("ratchet-rl", "torch", "transformers", "tokenizers", "peft")
"""Whose versions decide what a training computes."""

R = TypeVar("R", bound=Row)


def train(spec: JobSpec, directory: Path, events: BinaryIO, stop: threading.Event, begun: threading.Event) -> Event:
    """Load, train, and leave the policy's files and documents in the job's directory; as the first of its ranks.

    `begun` is set once train steps begin, so that there may be something to save at a stop.
    """
    with closing(ChildRun(spec, directory, events, stop, begun)) as run, _ranks(spec, directory, 0) as ranks:
        try:
            policy, outcome = _learnt(spec, ranks, run if ranks.alone else RankRun(ranks, run.resume, run))
        except StopRequested:
            return Stopped(step=run.reached)
        probe, memory = _probed(policy, outcome), sum(ranks.gather(_peak_memory()))
    result = directory / RESULT
    result.mkdir()
    save_policy(policy, result, spec.base_name)
    _write_documents(directory / DOCUMENTS, spec, policy, outcome)
    return Finished(
        directory=str(result),
        kind=policy.kind,
        samples=outcome.samples,
        metrics=outcome.metrics,
        peak_memory_gb=memory / 1e9,
        dtype=policy.dtype,
        final_reward=outcome.final_reward,
        probe=probe,
        evaluation=outcome.evaluation,
        health_stop=outcome.health_stop,
    )


def assist(spec: JobSpec, directory: Path, index: int) -> None:
    """Train as one of the ranks behind the first, which keeps the result."""
    resume = open_checkpoint(Path(spec.resume), spec.training_job_id, spec.config.algorithm) if spec.resume else None
    with _ranks(spec, directory, index) as ranks, suppress(StopRequested):
        policy, outcome = _learnt(spec, ranks, RankRun(ranks, resume))
        _probed(policy, outcome)
        ranks.gather(_peak_memory())


def _learnt(spec: JobSpec, ranks: Ranks, run: Run) -> tuple[TrainedPolicy, Outcome]:
    """What every rank does."""
    torch.set_num_threads(spec.threads)
    torch.manual_seed(spec.config.hyperparameters.seed or 0)
    algorithm = spec.config.algorithm
    learn = load_train(algorithm)
    examples = read_examples(Path(spec.dataset), algorithm)
    policy = load_policy(spec, ranks)
    return policy, learn(spec, policy, examples, run)


def _probed(policy: TrainedPolicy, outcome: Outcome) -> Probe | None:
    """What every rank does with its policy at the end: see that its weights and what they compute are numbers."""
    check_numbers(policy)
    probe = None if policy.kind == REWARD_MODEL else probe_policy(policy, outcome.probe_prompt)
    if probe is not None and not all(map(math.isfinite, probe.logprobs)):
        raise Diverged("log-probabilities under the trained weights are not finite")
    return probe


def _ranks(spec: JobSpec, directory: Path, index: int) -> AbstractContextManager[Ranks]:
    return connected(index, spec.ranks, spec.rendezvous or f"file://{directory / RENDEZVOUS}")


def _peak_memory() -> int:
    """Bytes of this process: of its GPU where it has one and took more there."""
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return max(resident, torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0)


def check_numbers(policy: TrainedPolicy) -> None:
    """Raise `Diverged` for weights that no engine could use: no train step comes after the last one to see them."""
    for name, parameter in policy.model.named_parameters():
        if parameter.requires_grad and not bool(parameter.isfinite().all()):
            raise Diverged(f"the weights {name} are not finite any more")


CHAT_LISTS = ("messages", "tools", "earlier")
CALL_LISTS = ("calls", "token_ids", "logprobs", "sequences", "spans")


class StoredTrajectories(Sequence[TrajectoryRow]):
    """The rows of a snapshot, read from its file a few at a time and in order: only what is made of them is kept.

    They have no chats where an algorithm learns from calls, and no calls where it learns from chats. Raises
    `DataUnusable` for a file that cannot be read. An index reads the file up to its row.
    """

    def __init__(self, path: Path, algorithm: str) -> None:
        self._path = path
        self._without = CHAT_LISTS if ALGORITHMS[algorithm].needs_token_ids else CALL_LISTS
        with _readable():
            self._count = count_rows(path)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[TrajectoryRow]:
        with _readable():
            yield from read_rows(self._path, TrajectoryRow, without=self._without, as_arrays=True)

    @overload
    def __getitem__(self, index: int) -> TrajectoryRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[TrajectoryRow]: ...
    def __getitem__(self, index: int | slice) -> TrajectoryRow | list[TrajectoryRow]:
        places = range(len(self))[index]
        if isinstance(places, int):
            return next(islice(self, places, None))
        return [row for place, row in enumerate(self) if place in places][:: 1 if places.step > 0 else -1]


def read_examples(path: Path, algorithm: str) -> Sequence[Row]:
    """The rows that an algorithm learns from, in the file's order.

    Raises `DataUnusable` when they cannot be read, or there are none.
    """
    form = ALGORITHMS[algorithm].learns_from
    if form != TRAJECTORIES:
        return read_snapshot(path, ROWS[form])
    rows = StoredTrajectories(path, algorithm)
    if not rows:
        raise DataUnusable("the snapshot holds no rows")
    return rows


def read_snapshot(path: Path, kind: type[R]) -> list[R]:
    """All rows of a kind, in the file's order. Raises `DataUnusable` when they cannot be read, or there are none."""
    with _readable():
        rows = list(read_rows(path, kind))
    if not rows:
        raise DataUnusable("the snapshot holds no rows")
    return rows


@contextmanager
def _readable() -> Generator[None]:
    try:
        yield
    except Rejected as error:
        raise DataUnusable(f"the snapshot cannot be read: {error}") from error


def _write_documents(directory: Path, spec: JobSpec, policy: TrainedPolicy, outcome: Outcome) -> None:
    """Write the effective configuration and the tokenizer into `directory`, which is made.

    The configuration holds everything that a second run needs to be the same: the request, and what it came to.
    """
    directory.mkdir()
    versions: dict[str, str | None] = {"python": platform.python_version()} | dict.fromkeys(PACKAGES)
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    configuration = {
        "algorithm": spec.config.algorithm,
        "role": spec.role,
        "training_job_id": spec.training_job_id,
        "attempt": spec.attempt,
        "base_model": spec.base_name,
        "dataset": spec.config.dataset,
        "holdout_size": spec.holdout,
        "hyperparameters": outcome.effective,
        "requested_hyperparameters": spec.config.hyperparameters,
        "threads": spec.threads,
        "ranks": spec.ranks,
        "device": str(policy.device),
        "versions": versions,
    }
    (directory / CONFIG).write_bytes(msgspec.json.format(msgspec.json.encode(configuration), indent=1))
    if not policy.has_adapter:
        return  # a model has its tokenizer among its own files
    tokenizer = [Path(spec.base, name) for name in TOKENIZER_FILES if Path(spec.base, name).is_file()]
    for path in tokenizer:  # the base's own, byte for byte
        shutil.copyfile(path, directory / path.name)
    if not tokenizer:
        policy.tokenizer.save_pretrained(str(directory))


class ChildRun:
    """`algorithms.base.Run`: events go to the worker, metrics to a file, checkpoints below the job's directory."""

    def __init__(
        self,
        spec: JobSpec,
        directory: Path,
        events: BinaryIO,
        stop: threading.Event,
        begun: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        saving, algorithm = spec.config.checkpointing, spec.config.algorithm
        keep = (saving.max_checkpoints if saving else None) or 1
        self._store = CheckpointStore(directory / CHECKPOINTS, spec.training_job_id, spec.attempt, algorithm, keep)
        self.resume = open_checkpoint(Path(spec.resume), spec.training_job_id, algorithm) if spec.resume else None
        self._interval = (saving.save_interval if saving else None) or SAVE_INTERVAL
        self._interval_s = math.inf if spec.checkpoint_s is None else spec.checkpoint_s
        self._clock = clock
        self._config = spec.config
        self._events = events
        self._metrics = (directory / METRICS_FILE).open("a", buffering=1)
        self._ranks = spec.ranks
        self._stop = stop
        self._begun = begun
        self._losses: list[float] = []
        self._findings: list[str] = []
        self._comparable = ALGORITHMS[algorithm].compares_losses
        self._best: TrainStep | None = None
        self._step_at = self._saved_at = clock()
        self._reported_at = -math.inf  # the first train step is reported at once
        self._step_s = self._longest_step_s = self._save_s = 0.0
        self._pending: Progressed | None = None
        self._tokens = 0
        self.reached = 0
        """The newest train step that was done or saved."""

    def close(self) -> None:
        """Close the metrics file."""
        self._metrics.close()

    def emit(self, event: Event) -> None:
        """Send the worker an event."""
        self._events.write(encode_event(event))
        self._events.flush()

    def explained(self, findings: Sequence[str]) -> None:
        """See `Run`. They go with the event `started`: before it, a stop on request may end the process at any time."""
        self._findings = [*findings]

    def started(self, samples: int, total_steps: int) -> None:
        self._begun.set()
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        self._step_at = self._saved_at = self._clock()
        few = too_few_steps(self._config, total_steps)
        self.emit(
            Started(
                pytorch_version=str(torch.__version__),
                cuda_version=torch.version.cuda,
                device=device,
                gpus=self._ranks if torch.cuda.is_available() else 0,
                samples=samples,
                total_steps=total_steps,
                findings=[*self._findings, *([few] if few else [])],
            )
        )

    def stepped(self, step: TrainStep) -> None:
        self.reached = step.number
        now = self._clock()
        took, self._step_at = now - self._step_at, now
        self._longest_step_s = max(self._longest_step_s, took)
        # A moving average: the first steps are slower, and other processes come and go.
        self._step_s = took if not self._step_s else 0.9 * self._step_s + 0.1 * took
        metrics = {name: value for name, value in step.metrics.items() if name != "tokens"}
        if "tokens" in step.metrics and took > 0:
            metrics["tokens_per_second"] = step.metrics["tokens"] / took
        self._tokens += int(step.metrics.get("tokens", 0))
        # A value that is no number has no place in JSON: there it is null.
        line = {"step": step.number, "epoch": step.epoch, "seconds": took} | metrics
        self._metrics.write(msgspec.json.encode(line).decode() + "\n")
        if not all(math.isfinite(value) for value in metrics.values()):
            raise Diverged(f"train step {step.number} is no longer finite: {metrics}")
        self._losses.append(metrics["loss"])
        if self._comparable and (self._best is None or metrics["loss"] < self._best.metrics["loss"]):
            self._best = step
        self._pending = Progressed(
            step=step.number,
            total_steps=step.total,
            epoch=step.epoch,
            total_epochs=step.total_epochs,
            eta_s=self._step_s * (step.total - step.number),
            longest_step_s=self._longest_step_s,
            metrics=metrics,
            tokens=self._tokens,
            best_step=self._best.number if self._best else None,
            best_epoch=self._best.epoch if self._best else None,
        )
        if now - self._reported_at >= PROGRESS_S or step.number == step.total:
            self._report_progress()

    def stop_requested(self) -> bool:
        return self._stop.is_set()

    def checkpoint_due(self, step: int) -> bool:
        rest_s = max(self._interval_s, self._save_s / SAVING_SHARE)
        return step % self._interval == 0 or self._clock() - self._saved_at >= rest_s

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        # Losses of a policy gradient say nothing about each other: there the later policy counts as the better one.
        score = float(step)
        if self._comparable:
            score = -statistics.fmean(self._losses) if self._losses else 0.0
        self._losses.clear()
        checkpoint = self._store.save(step, score, write)
        self.reached = step
        # From the end of the last train step on, for some loops write their files before they come here.
        now = self._clock()
        self._save_s, self._step_at, self._saved_at = now - self._step_at, now, now
        # A checkpoint is never ahead of the progress that the worker knows.
        self._report_progress()
        self.emit(Saved(directory=str(checkpoint.directory), step=step, took_s=self._save_s))

    def _report_progress(self) -> None:
        if self._pending is not None:
            self.emit(self._pending)
            self._pending, self._reported_at = None, self._clock()
