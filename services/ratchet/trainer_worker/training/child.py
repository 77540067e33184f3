"""The training process: reads a job directory, trains, and writes one JSON line per event to its standard output.

Forked from the warm parent, or run as `python -m ratchet.trainer_worker.training.child <job directory>`. It works in
the job directory; every path that it is given is absolute. SIGTERM asks it to stop at the next step boundary with
a checkpoint. It ends at once when its standard input closes: that is how it learns that the worker has died. It uses no
network, unless the base model is a name that transformers has to look up.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import traceback
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ratchet.contract.snapshot import ROWS
from ratchet.rules.algorithms import ALGORITHMS
from ratchet.trainer_worker.errors import StopRequested, error_code
from ratchet.trainer_worker.job import (
    DOCUMENTS,
    RESULT,
    Event,
    Failed,
    Finished,
    JobSpec,
    Stopped,
    encode_event,
    read_job,
)

if TYPE_CHECKING:
    from ratchet.trainer_worker.training.algorithms.base import Outcome
    from ratchet.trainer_worker.training.policy import TrainedPolicy


def main(directory: Path) -> int:
    """Train; returns the exit status, 0 also for a stop on request."""
    events = _take_stdout()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.chdir(directory)
    try:
        last = train(read_job(directory), directory, events, stop)
    except Exception as error:  # noqa: BLE001 - the boundary of the process: every failure becomes an event
        traceback.print_exc()
        code = error_code(error)
        last = Failed(code=code, message=str(error) or type(error).__name__, traceback=traceback.format_exc()[-4000:])
    events.write(encode_event(last))
    events.flush()
    return 1 if isinstance(last, Failed) else 0


def train(spec: JobSpec, directory: Path, events: BinaryIO, stop: threading.Event) -> Event:
    """Load, train, and leave the policy's files in the job's directory."""
    # After the job file was read: importing torch takes seconds, and may fail where an extra is missing.
    import torch  # noqa: PLC0415

    from ratchet.trainer_worker.training.algorithms import load_train  # noqa: PLC0415
    from ratchet.trainer_worker.training.child_run import ChildRun  # noqa: PLC0415
    from ratchet.trainer_worker.training.policy import load_policy  # noqa: PLC0415
    from ratchet.trainer_worker.training.probe import probe_policy  # noqa: PLC0415
    from ratchet.trainer_worker.training.snapshot import read_snapshot  # noqa: PLC0415

    torch.set_num_threads(spec.threads)
    torch.manual_seed(spec.config.hyperparameters.seed or 0)
    learn = load_train(spec.config.algorithm)
    with closing(ChildRun(spec, directory, events, stop)) as run:
        examples = read_snapshot(Path(spec.dataset), ROWS[ALGORITHMS[spec.config.algorithm].learns_from])
        if stop.is_set():
            return Stopped(step=0)
        policy = load_policy(spec)
        try:
            outcome = learn(spec, policy, examples, run)
        except StopRequested:
            return Stopped(step=run.reached)
    if outcome.stopped_at is not None:
        return Stopped(step=outcome.stopped_at)
    return Finished(
        directory=str(_leave(directory, spec, policy, outcome)),
        kind=policy.kind,
        samples=outcome.samples,
        metrics=outcome.metrics,
        peak_memory_gb=peak_memory_gb(),
        gpus=1 if policy.device.type == "cuda" else 0,
        final_reward=outcome.final_reward,
        probe=probe_policy(policy, outcome.probe_prompt),
        evaluation=outcome.evaluation,
    )


def _leave(directory: Path, spec: JobSpec, policy: TrainedPolicy, outcome: Outcome) -> Path:
    """Write the policy's files and its documents; returns the directory of the files."""
    from ratchet.trainer_worker.training.documents import write_documents  # noqa: PLC0415 - see train
    from ratchet.trainer_worker.training.policy import save_policy  # noqa: PLC0415

    result = directory / RESULT
    result.mkdir()
    save_policy(policy, result, spec.base_name)
    if outcome.extra_files is not None:
        outcome.extra_files(result)
    write_documents(directory / DOCUMENTS, spec, policy, outcome)
    return result


def peak_memory_gb() -> float:
    """Largest resident memory of this process, or memory of its GPU when it used one."""
    import torch  # noqa: PLC0415 - see train

    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return max(resident, gpu) / 1e9


def _take_stdout() -> BinaryIO:
    """Keep standard output for events; whatever libraries print goes to standard error."""
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return events


def _end_with_parent() -> None:
    """Blocks until the worker closes our standard input, by will or by dying."""
    while os.read(0, 1024):
        pass
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
