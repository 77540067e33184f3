"""The training process: reads a job directory, trains, and writes one JSON line per event to its standard output.

Forked from the fork server, or run as `python -m ratchet.trainer_worker.training.child <job directory>`. It works in
the job directory; every path that it is given is absolute. SIGTERM asks it to stop at the next step boundary with
a checkpoint; while it still loads and scores, which may take minutes and leaves nothing to save, it ends at once. It
ends at once, too, when its standard input closes: that is how it learns that the worker has died. It uses no network,
unless the base model is a name that transformers has to look up, or a search for a bundle asks the gateway. A job of
several ranks has one such process, which forks the others (see `rank_launcher`).
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.trainer_worker.errors import RankLost, Unhealthy, error_code, is_final, reason_of
from ratchet.trainer_worker.job import RENDEZVOUS, TEMPORARY, Failed, Finished, JobSpec, Stopped, encode_event, read_job
from ratchet.trainer_worker.training.rank_launcher import RankLauncher, end_with, fork_ranks, wait_for_the_end


def main(directory: Path, on_finished: Callable[[JobSpec, Finished], None] | None = None) -> int:
    """Train; returns the exit status, 0 also for a stop on request. `on_finished` comes before the last event."""
    # Standard output is for events; whatever libraries print goes to standard error.
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    stop, begun = threading.Event(), threading.Event()

    def on_stop(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        if not begun.is_set():  # no event was written yet, so none can be half written
            events.write(encode_event(Stopped(step=0)))
            events.flush()
            os._exit(0)

    signal.signal(signal.SIGTERM, on_stop)
    threading.Thread(target=end_with_parent, daemon=True).start()
    work_in(directory)
    launcher = RankLauncher()
    try:
        spec = read_job(directory)
        if spec.ranks > 1:
            (directory / RENDEZVOUS).unlink(missing_ok=True)
            # The thread above holds no lock: it waits in the kernel.
            launcher = fork_ranks(spec.ranks, lambda index: _as_rank(spec, directory, index), events)
        # After the job file was read: importing torch takes seconds, and fails where the extra is missing.
        if spec.search is not None:
            from ratchet.trainer_worker.training.prompts.prompt_run import train  # noqa: PLC0415
        elif ALGORITHMS[spec.config.algorithm].makes_planner:
            from ratchet.trainer_worker.training.planning.planner_run import train  # noqa: PLC0415
        else:
            from ratchet.trainer_worker.training.child_run import train  # noqa: PLC0415

        last = train(spec, directory, events, stop, begun)
        if isinstance(last, Finished) and on_finished is not None:
            on_finished(spec, last)
    except Exception as error:  # noqa: BLE001 - the boundary of the process: every failure becomes an event
        last = failed(error)
        launcher.explain()
    events.write(encode_event(last))
    events.flush()
    return 1 if isinstance(last, Failed) else 0


def _as_rank(spec: JobSpec, directory: Path, index: int) -> Failed | None:
    """Train as one of the ranks behind the first; returns why that failed."""
    try:
        from ratchet.trainer_worker.training.child_run import assist  # noqa: PLC0415 - see below

        assist(spec, directory, index)
    except RankLost:
        traceback.print_exc()
        wait_for_the_end()
        return None
    except Exception as error:  # noqa: BLE001 - the boundary of the process
        return failed(error)
    return None


def failed(error: Exception) -> Failed:
    """The event of a training that `error` ended."""
    traceback.print_exc()
    return Failed(
        code=error_code(error),
        message=reason_of(error),
        traceback=traceback.format_exc()[-4000:],
        final=is_final(error),
        health_stop=error.stop if isinstance(error, Unhealthy) else None,
    )


def work_in(directory: Path) -> None:
    """Make the job's directory that of this process, and a folder in it that of temporary files: those of a training
    are as large as its weights, and whatever a killed one leaves goes with the directory.
    """
    os.chdir(directory)
    temporary = directory / TEMPORARY
    temporary.mkdir(exist_ok=True)
    tempfile.tempdir = str(temporary)


def end_with_parent() -> None:
    """Block until the worker closes our standard input, and end."""
    end_with(0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
