"""A training on Ray: what one process computes, whichever of its processes is killed; real Ray, gloo on the CPU.

Each training starts a Ray cluster of its own, or several share one that has two nodes on this machine.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file

from ratchet.core.contract.training import Checkpointing, Hyperparameters, Lora
from ratchet.trainer_worker.child_process import library_environment
from ratchet.trainer_worker.job import (
    CHECKPOINTS,
    LOG_FILE,
    METRICS_FILE,
    RESULT,
    Event,
    Failed,
    Finished,
    JobSpec,
    Progressed,
    Saved,
    Started,
    Stopped,
    decode_event,
    write_job,
)
from ratchet.trainer_worker.training.checkpoints import CheckpointStore
from tests.support.snapshot_rows import trajectory_row, write_rows
from tests.support.tiny_models import write_tiny_model, write_tokenizer
from tests.support.trainer_runs import JOB_ID, job_spec, play, toy_model

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="no Ray here: `make ray`"),
    pytest.mark.timeout(600),
]
LORA = Lora(r=4, dropout=0.0)
TOLERANCE = 1e-4
"""As in tests/integration/test_training_ranks.py: the same numbers are added in another order."""
DEADLINE_S = 120.0
LONG: dict[str, Any] = {"epochs": 1000, "max_steps": 100, "learning_rate": 1e-4}
ENDLESS: dict[str, Any] = {"epochs": 1_000_000, "learning_rate": 1e-6}


class Training:
    """A training process as a worker sees it, on Ray unless it has no address."""

    def __init__(self, directory: Path, spec: JobSpec, address: str | None = "local") -> None:
        directory.mkdir()
        write_job(directory, spec)
        module = "ratchet.trainer_worker.training"
        program = [f"{module}.child"] if address is None else [f"{module}.ray_child", address]
        self.directory = directory
        self._log = (directory / LOG_FILE).open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", *program, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=library_environment(os.environ),
            start_new_session=True,
        )

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        self._log.close()

    def events(self) -> Iterator[Event]:
        """Its events until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield decode_event(line)

    def until(self, kind: type[Event]) -> None:
        """Return with the next event of a kind."""
        assert any(isinstance(event, kind) for event in self.events()), self.log()

    def finished(self) -> list[Event]:
        """All further events of a training that ends well."""
        events = [*self.events()]
        assert events, self.log()
        assert isinstance(events[-1], Finished), (events[-1], self.log())
        assert self.process.wait(DEADLINE_S) == 0
        return events

    def log(self) -> str:
        return (self.directory / LOG_FILE).read_text()

    def losses(self) -> dict[int, float]:
        """By train step. Every step is there once."""
        lines = [json.loads(line) for line in (self.directory / METRICS_FILE).read_text().splitlines()]
        assert [line["step"] for line in lines] == [*range(1, len(lines) + 1)]
        return {line["step"]: line["loss"] for line in lines}

    def weights(self) -> dict[str, torch.Tensor]:
        return load_file(self.directory / RESULT / "adapter_model.safetensors")


def rank_processes(tree: psutil.Process) -> list[psutil.Process]:
    """The processes that train, the first rank first: Ray names a process after the method that it runs."""
    named: dict[str, psutil.Process] = {}
    for child in tree.children(recursive=True):
        with suppress(psutil.Error):  # it may just have ended
            named["".join(child.cmdline()).strip()] = child
    return [named["ray::Rank.lead"], named["ray::Rank.assist"]]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Base and snapshot by algorithm."""
    root = tmp_path_factory.mktemp("inputs")
    texts = [f"{number} b c {number} " * (1 + number % 5) for number in range(16)]
    model = toy_model(0)
    model.save_pretrained(root / "toy")
    write_tokenizer(root / "toy", texts, 300)
    chats = [
        trajectory_row(n, messages=[{"role": "user", "content": text}, {"role": "assistant", "content": text[::-1]}])
        for n, text in enumerate(texts)
    ]
    tries = play(model, 16, 4, torch.Generator().manual_seed(0))
    return {
        "rloo": (str(root / "toy"), str(write_rows(root / "tries.parquet", tries))),
        "sft": (str(write_tiny_model(root / "chat", texts)), str(write_rows(root / "sft.parquet", chats))),
    }


def spec_of(inputs: dict[str, tuple[str, str]], algorithm: str, ranks: int, **hyper: Any) -> JobSpec:
    base, dataset = inputs[algorithm]
    asked: dict[str, Any] = {"learning_rate": 1e-2, "batch_size": 8, "epochs": 1, "lora": LORA} | hyper
    saving = Checkpointing(save_interval=10)
    parts: dict[str, Any] = {"base": base, "dataset": dataset, "ranks": ranks}
    return job_spec(algorithm, checkpointing=saving, hyper=Hyperparameters(**asked), **parts)


def assert_same(one: Training, other: Training) -> None:
    assert one.losses() == pytest.approx(other.losses(), abs=TOLERANCE)
    weights = other.weights()
    for name, own in one.weights().items():
        torch.testing.assert_close(weights[name], own, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("algorithm", ["rloo", "sft"])
def test_two_processes_on_ray_have_the_losses_and_the_adapter_of_one(
    algorithm: str, inputs: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    with Training(tmp_path / "one", spec_of(inputs, algorithm, 1), None) as one:
        one.finished()
    with Training(tmp_path / "two", spec_of(inputs, algorithm, 2)) as two:
        two.finished()
    assert_same(one, two)


@pytest.mark.parametrize("killed", [0, 1], ids=["the-first", "another"])
def test_killed_process_is_replaced_and_the_curve_goes_on(
    killed: int, inputs: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    with Training(tmp_path / "one", spec_of(inputs, "rloo", 1, **LONG), None) as one:
        one.finished()
    with Training(tmp_path / "two", spec_of(inputs, "rloo", 2, **LONG)) as two:
        two.until(Saved)
        rank_processes(psutil.Process(two.process.pid))[killed].kill()
        events = two.finished()
    assert sum(isinstance(event, Started) for event in events) == 1, "it began once more"
    assert "the training goes on from train step" in two.log()
    assert_same(one, two)


def test_a_stop_ends_all_processes_and_leaves_a_checkpoint(inputs: dict[str, tuple[str, str]], tmp_path: Path) -> None:
    with Training(tmp_path / "job", spec_of(inputs, "rloo", 2, **ENDLESS)) as training:
        training.until(Progressed)
        tree = psutil.Process(training.process.pid).children(recursive=True)
        training.process.terminate()
        *_, last = training.events()
        assert isinstance(last, Stopped), training.log()
        assert training.process.wait(DEADLINE_S) == 0
        assert not psutil.wait_procs(tree, timeout=DEADLINE_S)[1]
    (checkpoint,) = CheckpointStore(tmp_path / "job" / CHECKPOINTS, JOB_ID, 1, "rloo").all()
    assert checkpoint.manifest.step == last.step


def test_nothing_outlives_the_process_that_the_worker_started(
    inputs: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    with Training(tmp_path / "job", spec_of(inputs, "rloo", 2, **ENDLESS)) as training:
        training.until(Progressed)
        tree = psutil.Process(training.process.pid).children(recursive=True)
        training.process.kill()
        assert not psutil.wait_procs(tree, timeout=DEADLINE_S)[1]


def test_an_error_of_the_data_is_no_lost_process(inputs: dict[str, tuple[str, str]], tmp_path: Path) -> None:
    spec = replace(spec_of(inputs, "rloo", 2), base=str(tmp_path / "nowhere"))
    with Training(tmp_path / "job", spec) as training:
        *_, last = training.events()
        assert isinstance(last, Failed), training.log()
        assert last.code == "DATA"
        assert "goes on" not in training.log()


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of two nodes with room for one process each. `Any`: Ray has no types here."""
    for name, value in (("USAGE_STATS_ENABLED", "0"), ("AUTH_MODE", "token"), ("AUTH_TOKEN", secrets.token_hex(32))):
        monkeypatch.setenv(f"RAY_{name}", value)
    cluster: Any = import_module("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        cluster.add_node(num_cpus=1)
        yield cluster
    finally:
        cluster.shutdown()


def test_processes_of_two_nodes_train_together_and_end_with_their_training(
    two_nodes: Any, inputs: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    with Training(tmp_path / "one", spec_of(inputs, "rloo", 1), None) as one:
        one.finished()
    with Training(tmp_path / "two", spec_of(inputs, "rloo", 2), two_nodes.address) as two:
        two.finished()
    assert_same(one, two)

    with Training(tmp_path / "killed", spec_of(inputs, "rloo", 2, **ENDLESS), two_nodes.address) as training:
        training.until(Progressed)
        ranks = rank_processes(psutil.Process())
        assert len({rank.ppid() for rank in ranks}) == 2, "one on each node"
        training.process.kill()
        assert not psutil.wait_procs(ranks, timeout=DEADLINE_S)[1]
