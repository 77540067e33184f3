"""What the worker and a training process send each other: a job file, and one JSON line per event. No torch."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ratchet.bus.message import Value, decode
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.local_training import LoopOptions
from ratchet.core.contract.policy_manifest import Probe
from ratchet.core.contract.training import EvaluationResults, HealthStop, TrainingConfig
from ratchet.core.rules.algorithms import ALGORITHMS

JOB_FILE, METRICS_FILE, LOG_FILE = "job.json", "metrics.jsonl", "child.log"
CHECKPOINTS, RESULT, DOCUMENTS, TEMPORARY = "checkpoints", "result", "documents", "temporary"
CHECKPOINT_MANIFEST, RENDEZVOUS, STORED = "checkpoint.json", "ranks", "stored"
BUNDLE_FILE, PLANNER_FILE = "bundle.json", "planner.safetensors"
"""Names inside a job's directory."""


class SearchSpec(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What a search for a bundle needs beside the request."""

    start: Bundle
    """What serves the role."""
    train: str
    """The task file to learn from,"""
    validation: str
    """and the one to choose by."""
    model: str
    """What the gateway is asked for: the policy that serves, by its full name, or the role."""
    pinned: bool
    """`model` is a policy's full name: nothing else may answer."""
    gateway: str
    """Its address."""
    composed_by: str | None = None
    """Digest of the policy that is asked, where its own bundle must be left out."""


class JobSpec(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Everything the child needs; every input is a local path (or a name that transformers loads)."""

    training_job_id: str
    attempt: int
    role: str
    config: TrainingConfig
    dataset: str
    """The snapshot's Parquet file."""
    base: str
    """Directory of the base model, or a name or path for `from_pretrained`."""
    base_name: str
    """What an adapter's manifest calls its base."""
    threads: int
    adapter: str | None = None
    """Directory of the adapter to continue from."""
    resume: str | None = None
    """Directory of the checkpoint to resume from."""
    dtype: str | None = None
    """Number format that the policy to continue was computed in, as its manifest names it; None: unknown."""
    checkpoint_s: float | None = None
    """Longest time between checkpoints, whatever their interval in train steps. None: only that interval counts."""
    ranks: int = 1
    """Processes that train together, each on a GPU of its own where there are any."""
    rendezvous: str | None = None
    """Where they find each other, as `torch.distributed` names it. None: all are on this machine, and find a file."""
    holdout: float = 0.0
    """Fraction of the data that is held out to judge the result on."""
    search: SearchSpec | None = None
    """Of an algorithm that writes bundles."""
    planner: str | None = None
    """File of the planner that serves, of an algorithm that makes planners; None for version 0."""
    loop: LoopOptions = LoopOptions()
    """Of a training without a worker; a job sets `eval_steps` alone."""

    @property
    def batch_size(self) -> int:
        """Examples of a train step: what the job asks for, else its algorithm's default."""
        config = self.config
        return config.hyperparameters.batch_size or ALGORITHMS[config.algorithm].default_batch_size


class Started(Value, frozen=True, kw_only=True, omit_defaults=True, tag="started"):
    """The model and the data are loaded; training begins."""

    pytorch_version: str | None = None
    samples: int
    total_steps: int
    cuda_version: str | None = None
    device: str | None = None
    gpus: int = 0
    """GPUs that the training uses."""
    findings: list[str] = msgspec.field(default_factory=list[str])
    """What the chat template loses of the data, or teaches by mistake: sentences."""


class Progressed(Value, frozen=True, kw_only=True, omit_defaults=True, tag="progressed"):
    """A train step is done."""

    step: int
    total_steps: int
    epoch: int
    total_epochs: int
    eta_s: float
    longest_step_s: float
    """Of the train steps so far: a stop waits for one."""
    metrics: dict[str, float]
    tokens: int = 0
    """Of the rows of all train steps of this attempt."""
    best_step: int | None = None
    """The train step with the least loss so far, for algorithms whose losses can be compared from step to step."""
    best_epoch: int | None = None


class Saved(Value, frozen=True, kw_only=True, tag="saved"):
    """A complete checkpoint lies in `directory`."""

    directory: str
    step: int
    took_s: float
    """How long the training waited for it: a stop waits for one more."""


class Finished(Value, frozen=True, kw_only=True, omit_defaults=True, tag="finished"):
    """The policy's files lie in `directory`."""

    directory: str
    kind: str
    samples: int
    metrics: dict[str, float]
    peak_memory_gb: float
    dtype: str | None = None
    """Number format of the computation, as a manifest names it."""
    final_reward: float | None = None
    probe: Probe | None = None
    evaluation: EvaluationResults | None = None
    """On what was held out."""
    health_stop: HealthStop | None = None
    """Why it was stopped before its last train step; the files are of the newest healthy weights."""


class Stopped(Value, frozen=True, kw_only=True, omit_defaults=True, tag="stopped"):
    """Stopped on request; the newest checkpoint holds the state."""

    step: int


class Failed(Value, frozen=True, kw_only=True, omit_defaults=True, tag="failed"):
    """It cannot go on. `code` is the error class of the training status."""

    code: str
    message: str
    traceback: str | None = None
    final: bool = False
    """Another attempt would fail the same way."""
    health_stop: HealthStop | None = None
    """The figure that was beyond its limit, if that is why."""


Event = Started | Progressed | Saved | Finished | Stopped | Failed


def write_job(directory: Path, spec: JobSpec) -> None:
    """Put the job file into `directory`."""
    (directory / JOB_FILE).write_bytes(msgspec.json.encode(spec))


def read_job(directory: Path) -> JobSpec:
    """Read the job file of `directory`."""
    return decode((directory / JOB_FILE).read_bytes(), JobSpec)


def encode_event(event: Event) -> bytes:
    """One line."""
    return msgspec.json.encode(event) + b"\n"


def decode_event(line: bytes) -> Event:
    """Raises `msgspec.DecodeError` for a line that is no event."""
    return decode(line, Event)
