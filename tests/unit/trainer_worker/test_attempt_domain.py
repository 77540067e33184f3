"""What an attempt publishes, when it must stop, and how it ends."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from ratchet.core.contract import TrainingDispatch
from ratchet.core.contract.state import Job
from ratchet.core.errors import DigestMismatch, ObjectsUnavailable, Rejected
from ratchet.core.service.contracts import load_contracts
from ratchet.trainer_worker.child_process import child_environment
from ratchet.trainer_worker.domain import (
    Exit,
    Frame,
    Report,
    StopReason,
    Worker,
    conclude,
    grace_s,
    may_start,
    must_stop,
)
from ratchet.trainer_worker.errors import (
    DataUnusable,
    Diverged,
    EqualRewards,
    ModelUnusable,
    NoGradient,
    TimedOut,
    error_code,
    is_final,
    reason_of,
)
from ratchet.trainer_worker.job import (
    Failed,
    Finished,
    Progressed,
    Saved,
    Started,
    Stopped,
    decode_event,
    encode_event,
    read_job,
    write_job,
)
from ratchet.trainer_worker.training.algorithms.base import TrainStep
from ratchet.trainer_worker.training.checkpoints import CheckpointStore
from ratchet.trainer_worker.training.child_run import ChildRun
from tests.support.trainer_runs import job_spec
from tests.support.training import job, request

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
W1 = Worker("w1", "one")
FINISHED = Finished(directory="/result", kind="adapter", samples=3, metrics={}, peak_memory_gb=0.5)


def dispatch(attempt: int = 2) -> TrainingDispatch:
    asked = request()
    return TrainingDispatch(
        training_job_id=asked.training_job_id, attempt=attempt, pool="default", timestamp=NOW, request=asked
    )


def frame(price: float | None = None) -> Frame:
    return Frame(dispatch=dispatch(), worker=W1, begun_at=NOW, platform="linux", price_per_hour_usd=price)


def test_statuses_of_a_job_that_offers_no_policy_carry_that() -> None:
    asked = msgspec.structs.replace(dispatch(), request=request(offer=False))
    assert not replace(frame(), dispatch=asked).status("completed", Report(), NOW).offer
    assert frame().status("completed", Report(), NOW).offer


@pytest.mark.parametrize(
    ("last", "code", "reason", "status", "error"),
    [
        (FINISHED, 0, None, "completed", None),
        (FINISHED, 0, StopReason.CANCELLED, "completed", None),
        (FINISHED, 0, StopReason.FENCED, None, None),
        (Stopped(step=4), 0, StopReason.CANCELLED, "cancelled", None),
        (Stopped(step=4), 0, StopReason.SHUTDOWN, "cancelled", None),
        (None, -9, StopReason.CANCELLED, "cancelled", None),
        (Stopped(step=4), 0, StopReason.TIMEOUT, "failed", "TIMEOUT"),
        (Failed(code="CONVERGENCE", message="nan"), 1, None, "failed", "CONVERGENCE"),
        (None, -9, None, "failed", "INFRA"),
        (None, 1, None, "failed", "UNKNOWN"),
        (None, 0, None, "failed", "UNKNOWN"),
    ],
)
def test_how_an_attempt_ends(
    last: Any, code: int, reason: StopReason | None, status: str | None, error: str | None
) -> None:
    conclusion = conclude(last, Exit(code=code), reason)
    assert (conclusion.status if conclusion else None) == status
    assert (conclusion.error.code if conclusion and conclusion.error else None) == error


def test_a_process_that_the_kernel_ended_for_lack_of_memory_is_oom() -> None:
    conclusion = conclude(None, Exit(code=-9, oom_killed=True), None)
    assert conclusion is not None
    assert conclusion.error is not None
    assert conclusion.error.code == "OOM"


def test_a_crash_names_its_cause_and_shows_the_end_of_the_log() -> None:
    conclusion = conclude(None, Exit(code=139, log_tail="Segmentation fault"), None)
    assert conclusion is not None
    assert conclusion.error is not None
    assert "status 139" in conclusion.error.message
    assert conclusion.error.traceback == "Segmentation fault"


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (None, None),
        (job(state="running", attempt=2), None),
        (job(state="running", attempt=2, cancel_requested=True), StopReason.CANCELLED),
        (job(state="queued", attempt=3), StopReason.FENCED),
        (job(state="running", attempt=3, cancel_requested=True), StopReason.FENCED),
        (job(state="cancelled", attempt=2), StopReason.FENCED),
        (job(state="queued", attempt=1), None),
        (job(state="running", attempt=2, worker="w1", instance="one"), None),
        (job(state="running", attempt=2, worker="w1"), None),
        (job(state="running", attempt=2, worker="w1", instance="other"), StopReason.FENCED),
        (job(state="running", attempt=2, worker="w2", instance="other"), StopReason.FENCED),
    ],
)
def test_when_a_running_attempt_must_stop(state: Job | None, reason: StopReason | None) -> None:
    assert must_stop(state, 2, W1) == reason


@pytest.mark.parametrize(
    ("state", "may"),
    [
        (None, True),
        (job(state="dispatched", attempt=2), True),
        (job(state="queued", attempt=1), True),
        (job(state="queued", attempt=3), False),
        (job(state="completed", attempt=2), False),
        (job(state="running", attempt=2, worker="other"), False),
        (job(state="running", attempt=2, worker="w1"), True),
        (job(state="running", attempt=2, worker="w1", instance="one"), True),
        (job(state="running", attempt=2, worker="w1", instance="other"), False),
    ],
)
def test_which_dispatch_is_still_worth_running(state: Job | None, may: bool) -> None:
    assert may_start(state, 2, W1) == may


def test_every_status_is_a_valid_message() -> None:
    contracts = load_contracts()
    report = Report()
    beginning = frame().status("running", report, NOW)
    contracts.check_strict(beginning)
    report.fold(Started(pytorch_version="2.13", samples=12, total_steps=40, device="cpu"))
    metrics = {"loss": 0.5, "kl_divergence": -1e-9, "ess": 0.9, "rows": 7.0, "policy_entropy": 1.0, "reward_mean": 0.4}
    report.fold(
        Progressed(
            step=10, total_steps=40, epoch=1, total_epochs=2, eta_s=30.0, longest_step_s=3.0, metrics=metrics, tokens=9
        )
    )
    report.checkpoint = "s3://bucket/checkpoints/a.json"
    running = frame().status("running", report, NOW + timedelta(seconds=5))
    contracts.check_strict(running)
    assert running.progress is not None
    assert running.progress.percent_complete == 25.0
    assert running.metrics is not None
    assert running.metrics.current is not None
    assert running.metrics.current.kl_divergence == 0.0
    assert running.metadata is not None
    assert (running.metadata.worker, running.metadata.instance) == ("w1", "one")
    assert running.metadata.training_samples == 12
    assert running.artifacts is not None
    assert running.artifacts.checkpoint == report.checkpoint
    assert running.resource_usage is not None
    assert (running.resource_usage.total_training_time_seconds, running.resource_usage.tokens) == (5.0, 9)
    failed = conclude(Failed(code="OOM", message="no memory", traceback="..."), Exit(code=1), None)
    assert failed is not None
    contracts.check_strict(frame().status("failed", report, NOW, error=failed.error))


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="the system has no device that is full")
def test_a_full_disk_is_called_one_and_is_the_machines() -> None:
    with pytest.raises(RuntimeError) as full:
        torch.save({"weights": torch.zeros(1_000_000)}, "/dev/full")
    assert error_code(full.value) == "INFRA"
    assert reason_of(full.value).startswith("the disk is full: ")
    other = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert error_code(other) == "INFRA"
    assert reason_of(RuntimeError()) == "RuntimeError"


def test_two_statuses_of_an_attempt_are_two_events() -> None:
    one, two = (frame().status("running", Report(), NOW + timedelta(seconds=n)) for n in (1, 2))
    assert one.event_id != two.event_id
    assert (one.attempt, one.role) == (2, "support")


def test_errors_have_their_class() -> None:
    class OutOfMemoryError(RuntimeError):
        """Named like torch's."""

    errors = [Diverged("x"), DataUnusable("x"), TimedOut("x"), Rejected("x"), DigestMismatch("x")]
    assert [error_code(error) for error in errors] == ["CONVERGENCE", "DATA", "TIMEOUT", "DATA", "DATA"]
    assert [error_code(error) for error in (MemoryError(), OutOfMemoryError())] == ["OOM", "OOM"]
    assert [error_code(error) for error in (ObjectsUnavailable("x"), OSError())] == ["INFRA", "INFRA"]
    assert error_code(RuntimeError()) == "UNKNOWN"


def test_errors_that_no_other_choice_of_data_mends_are_final() -> None:
    final = [EqualRewards(12), ModelUnusable("no model there"), ValueError("Stop argument for islice()"), TypeError()]
    assert all(map(is_final, [*final, NoGradient(10, 0.0)]))
    assert not any(map(is_final, [DataUnusable("no rows"), RuntimeError(), OSError(), MemoryError(), Rejected("x")]))
    concluded = conclude(Failed(code="DATA", message="equal", final=True), Exit(code=1), None)
    assert concluded is not None
    assert concluded.error is not None
    assert concluded.error.final


def test_errors_of_the_libraries_have_the_class_of_what_is_behind_them(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as cpu:
        torch.empty(10**15)
    assert error_code(cpu.value) == "OOM"
    (tmp_path / "broken.safetensors").write_bytes(b"no weights")
    with pytest.raises(Exception, match="header") as broken:
        load_file(tmp_path / "broken.safetensors")
    assert error_code(broken.value) == "DATA"
    lacking = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    mapped = RuntimeError("unable to mmap 9 bytes from file <model.safetensors>: Cannot allocate memory (12)")
    assert [error_code(error) for error in (lacking, mapped, RuntimeError("std::bad_alloc"))] == ["OOM"] * 3
    assert error_code(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")) == "OOM"
    assert error_code(torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")) == "INFRA"
    assert error_code(torch.AcceleratorError("CUDA error: device-side assert triggered")) == "UNKNOWN"
    # The same program fails the same way: nothing known says that it was the data.
    assert error_code(AttributeError("'float' object has no attribute 'numerator'")) == "UNKNOWN"


def test_job_files_and_events_survive_the_trip(tmp_path: Path) -> None:
    spec = job_spec("rloo", base="/base", dataset="/data.parquet", holdout=0.25)
    write_job(tmp_path, spec)
    assert read_job(tmp_path) == spec
    for event in (FINISHED, Stopped(step=1), Failed(code="OOM", message="a\nb")):
        line = encode_event(event)
        assert line.count(b"\n") == 1
        assert decode_event(line) == event
    with pytest.raises(msgspec.DecodeError):
        decode_event(b"Loading weights: 100%\n")


@pytest.mark.parametrize(("price", "cost"), [(None, None), (0.0, 0.0), (7.2, 3.6)])
def test_an_attempt_costs_its_time_at_the_price_of_its_worker(price: float | None, cost: float | None) -> None:
    usage = frame(price).status("running", Report(), NOW + timedelta(minutes=30)).resource_usage
    assert usage is not None
    assert usage.cost_usd == cost


def test_gpu_hours_count_from_the_first_heartbeat_also_of_a_failure() -> None:
    held = replace(frame(), gpus=1)
    begun, used = Report(), Report()
    used.fold(Started(pytorch_version="2.13", samples=1, total_steps=1, gpus=2))
    unused = Report()
    unused.fold(Started(pytorch_version="2.13", samples=1, total_steps=1))
    for kind in ("running", "failed"):
        hours = [held.status(kind, one, NOW + timedelta(minutes=30)).resource_usage for one in (begun, used, unused)]
        assert [usage.gpu_hours for usage in hours if usage] == [0.5, 1.0, 0.0]


def test_training_has_time_to_stop_for_its_steps_and_checkpoints() -> None:
    report = Report()
    assert grace_s(report, 20.0) == 20.0
    report.fold(
        Progressed(
            step=1, total_steps=4, epoch=1, total_epochs=1, eta_s=0.0, longest_step_s=70.0, metrics={"loss": 1.0}
        )
    )
    assert grace_s(report, 20.0) == 20.0 + 2 * (70.0 + 70.0)
    report.fold(Saved(directory="/c", step=1, took_s=15.0))
    report.fold(Saved(directory="/c", step=1, took_s=5.0))
    assert grace_s(report, 20.0) == 20.0 + 2 * (70.0 + 15.0)


class Clock:
    """A clock that stands still between its advances."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_checkpoints_come_by_time_too_and_take_a_tenth_of_it_at_most(tmp_path: Path) -> None:
    events, clock = io.BytesIO(), Clock()

    def write(directory: Path) -> None:
        (directory / "state").write_bytes(b"")
        clock.now_s += 60.0

    spec = job_spec("rloo", checkpoint_s=300.0)
    due: list[int] = []
    with closing(ChildRun(spec, tmp_path, events, threading.Event(), threading.Event(), clock)) as run:
        run.started(samples=1, total_steps=20)
        for number in range(1, 13):
            clock.now_s += 100.0
            run.stepped(TrainStep(number, 20, 1, 1, {"loss": 0.5}))
            if run.checkpoint_due(number):
                due.append(number)
                run.save(number, write)
    # At first after 300 s; each takes 60 s, so the next ones come 600 s later.
    assert due == [3, 9]
    known = [decode_event(line) for line in events.getvalue().splitlines()]
    assert [event.took_s for event in known if isinstance(event, Saved)] == [60.0, 60.0]
    assert {event.longest_step_s for event in known if isinstance(event, Progressed)} == {100.0}


@pytest.mark.parametrize(("algorithm", "kept"), [("sft", [2, 4]), ("rloo", [3, 4])])
def test_best_checkpoint_has_least_loss_where_losses_compare(tmp_path: Path, algorithm: str, kept: list[int]) -> None:
    with closing(ChildRun(job_spec(algorithm), tmp_path, io.BytesIO(), threading.Event(), threading.Event())) as run:
        run.started(samples=1, total_steps=4)
        for number, loss in ((1, 0.9), (2, 0.1), (3, 0.6), (4, 0.7)):
            run.stepped(TrainStep(number, 4, 1, 1, {"loss": loss}))
            run.save(number, lambda directory: (directory / "state").touch())
    store = CheckpointStore(tmp_path / "checkpoints", job_spec(algorithm).training_job_id, 1, algorithm)
    assert [checkpoint.manifest.step for checkpoint in store.all()] == kept


def test_findings_are_in_every_status_from_the_first_on(tmp_path: Path) -> None:
    events, report = io.BytesIO(), Report()
    with closing(ChildRun(job_spec("sft"), tmp_path, events, threading.Event(), threading.Event())) as run:
        run.explained(["A text is lost."])
        assert events.getvalue() == b""
        run.started(samples=1, total_steps=3)
    assert frame().status("running", report, NOW).findings is None
    report.fold(decode_event(events.getvalue()))
    assert frame().status("running", report, NOW).findings == ["A text is lost."]


@pytest.mark.parametrize("algorithm", ["sft", "rloo", "dpo", "kto", "reward_model"])
def test_a_training_of_one_step_warns_of_it_in_every_status(tmp_path: Path, algorithm: str) -> None:
    events, report = io.BytesIO(), Report()
    with closing(ChildRun(job_spec(algorithm), tmp_path, events, threading.Event(), threading.Event())) as run:
        run.started(samples=1, total_steps=1)
    report.fold(decode_event(events.getvalue()))
    (finding,) = frame().status("running", report, NOW).findings or ()
    assert finding.startswith("This training has 1 train step")


@pytest.mark.parametrize(("algorithm", "best"), [("sft", (2, 1)), ("rloo", (None, None))])
def test_the_best_step_is_the_one_of_least_loss_where_losses_compare(
    tmp_path: Path, algorithm: str, best: tuple[int | None, int | None]
) -> None:
    events = io.BytesIO()
    with closing(ChildRun(job_spec(algorithm), tmp_path, events, threading.Event(), threading.Event())) as run:
        run.started(samples=1, total_steps=3)
        for number, loss in ((1, 0.9), (2, 0.4), (3, 0.6)):
            run.stepped(TrainStep(number, 3, 1 if number < 3 else 2, 2, {"loss": loss}))
    last = decode_event(events.getvalue().splitlines()[-1])
    assert isinstance(last, Progressed)
    report = Report()
    report.fold(last)
    metrics = frame().status("running", report, NOW).metrics
    assert metrics is not None
    reported = (metrics.best.step, metrics.best.epoch) if metrics.best else (None, None)
    assert reported == best


def test_a_training_process_gets_no_secrets_and_its_thread_count(tmp_path: Path) -> None:
    spec = job_spec("sft", base=str(tmp_path))
    environment = child_environment({"PATH": "/bin", "RATCHET_S3_SECRET_KEY": "secret"}, spec)
    assert environment["PATH"] == "/bin"
    assert "RATCHET_S3_SECRET_KEY" not in environment
    assert (environment["OMP_NUM_THREADS"], environment["HF_HUB_OFFLINE"]) == ("1", "1")
    assert "CUDA_VISIBLE_DEVICES" not in environment
    assert environment["OMP_WAIT_POLICY"] == "passive"
    assert child_environment({"OMP_WAIT_POLICY": "active"}, spec)["OMP_WAIT_POLICY"] == "active"
    by_name = job_spec("sft", base="org/model")
    assert child_environment({}, by_name)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in child_environment({"RATCHET_HUB": "1"}, by_name)


@pytest.mark.parametrize(("most", "code"), [(None, "UNKNOWN"), (1_000_000, "OOM")], ids=["with memory", "without"])
def test_system_error_is_one_of_memory_where_there_is_none(most: int | None, code: str) -> None:
    lines = [
        "import psutil",
        "from ratchet.trainer_worker.errors import error_code",
        "process = psutil.Process()",
        f"most = {most}",
        "limit = -1 if most is None else process.memory_info().vms + most",
        "process.rlimit(psutil.RLIMIT_AS, (limit, limit))",
        "print(error_code(SystemError('returned NULL without setting an exception')))",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == code
