"""The training process of a job that runs on Ray: it starts the ranks, passes their events on, and replaces lost ones.

Run as `python -m ratchet.trainer_worker.training.ray_child <address> <job directory>`, where the address is `local` for
a Ray cluster of its own. To the worker it is a training process like `child`, by the same events, signals and end of
its standard input, but it computes nothing: every rank is a Ray actor (`ray_rank`). When a rank dies, all are replaced,
and go on from the newest checkpoint; after more than `RESTARTS` losses in a row without a newer one the training fails.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from ratchet.core.errors import MissingExtra, Unavailable
from ratchet.trainer_worker.errors import RankLost, StopRequested
from ratchet.trainer_worker.job import (
    CHECKPOINTS,
    Event,
    Failed,
    Finished,
    JobSpec,
    Started,
    Stopped,
    decode_event,
    encode_event,
    read_job,
)
from ratchet.trainer_worker.training.checkpoints import CheckpointStore
from ratchet.trainer_worker.training.child import end_with_parent, failed
from ratchet.trainer_worker.training.local_run import take_up
from ratchet.trainer_worker.training.ray_rank import Rank

LOCAL = "local"
LOOPBACK = "127.0.0.1"
RESTARTS = 3
PLACE_S = 600.0
"""How long Ray may need to find room for all ranks: other trainings may have it, or a machine has to be started."""
GRACE_S = 2.0
"""How long the first rank's loss of another waits for that one's reason."""
POLL_S = 0.1
"""How soon a signal to stop is noticed."""
OBJECT_STORE_BYTES = 80_000_000
"""Of a cluster of our own, whose ranks send nothing but events: about the least that Ray takes."""
ENVIRONMENT = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TOKENIZERS_PARALLELISM",
    "TQDM_DISABLE",
    "HF_HUB_DISABLE_TELEMETRY",
    "HF_HUB_OFFLINE",
)
"""What every rank has of this process' environment; the rest is its machine's own."""


def main(address: str, directory: Path) -> int:
    """Train; returns the exit status, 0 also for a stop on request."""
    # Standard output is for events; what Ray and the ranks print goes to standard error.
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    stop = threading.Event()

    def on_stop(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_stop)
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        spec = read_job(directory)
        with cluster(address, spec) as ray:
            signal.signal(signal.SIGTERM, on_stop)  # Ray has put one of its own there
            last = Training(ray, spec, directory, events, stop).run()
    except Exception as error:  # noqa: BLE001 - the boundary of the process: every failure becomes an event
        last = failed(error)
    events.write(encode_event(last))
    events.flush()
    return 1 if isinstance(last, Failed) else 0


@contextmanager
def cluster(address: str, spec: JobSpec) -> Generator[Any]:
    """Ray, connected. `Any`: it is no package of the environment that types are checked in."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if address == LOCAL:  # Ray reads these when it is imported
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_worker_niceness", "0")  # a training is as important here as one without Ray
    try:
        ray = import_module("ray")
    except ImportError as error:
        raise MissingExtra("ray", "training on Ray") from error
    with tempfile.TemporaryDirectory(prefix="ratchet-ray-", ignore_cleanup_errors=True) as folder:
        try:
            own: dict[str, Any] = {  # it listens on this machine alone, is as large as the training, and ends with it
                "num_cpus": spec.ranks * spec.threads,
                "object_store_memory": OBJECT_STORE_BYTES,
                "include_dashboard": False,
                "_node_ip_address": LOOPBACK,
                "_temp_dir": folder,
            }
            ray.init(address, **(own if address == LOCAL else {}))
            yield ray
        finally:
            ray.shutdown()


class Training:
    """The ranks of a job, and those that replace them."""

    def __init__(self, ray: Any, spec: JobSpec, directory: Path, events: BinaryIO, stop: threading.Event) -> None:
        self._ray = ray
        self._spec = spec
        self._directory = directory
        self._events = events
        self._stop = stop
        self._store = CheckpointStore(
            directory / CHECKPOINTS, spec.training_job_id, spec.attempt, spec.config.algorithm
        )

    def run(self) -> Event:
        """The last event."""
        resume, step, losses = self._spec.resume, 0, 0
        while True:
            try:
                return self._train(resume)
            except StopRequested:
                return Stopped(step=step)
            except RankLost as error:
                newest = take_up(self._directory, self._store)
                losses = 0 if newest is not None and newest.manifest.step > step else losses + 1
                if losses > RESTARTS:
                    raise
                if newest is not None:
                    resume, step = str(newest.directory), newest.manifest.step
                print(f"{error}; the training goes on from train step {step}", file=sys.stderr, flush=True)  # noqa: T201

    def _train(self, resume: str | None) -> Event:
        """All ranks once. Raises `RankLost` when one has died."""
        with self._placed() as ranks:
            first, *others = ranks
            try:
                meeting_point = first.meeting_point.remote()
                self._await(meeting_point, "process that answers")
                rendezvous = self._ray.get(meeting_point)
                events = first.lead.options(num_returns="streaming").remote(rendezvous, resume)
                ends = [rank.assist.remote(index, rendezvous, resume) for index, rank in enumerate(others, 1)]
                return self._last_event(first, events, ends)
            except self._ray.exceptions.RayActorError as error:
                raise RankLost(f"a process of the training is gone: {' '.join(str(error).split())[:500]}") from error

    @contextmanager
    def _placed(self) -> Generator[list[Any]]:
        """The ranks, all of them or none: two trainings that had half of theirs each would wait for ever."""
        util: Any = import_module("ray.util")
        strategies: Any = import_module("ray.util.scheduling_strategies")
        needs: dict[str, float] = {"CPU": self._spec.threads}
        if self._ray.cluster_resources().get("GPU"):
            needs["GPU"] = 1
        group = util.placement_group([needs] * self._spec.ranks)
        ranks: list[Any] = []
        try:
            self._await(group.ready(), f"room for {self._spec.ranks} processes that need {needs} each")
            environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
            for index in range(self._spec.ranks):
                place = strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
                made = self._ray.remote(Rank).options(
                    num_cpus=needs["CPU"], num_gpus=needs.get("GPU", 0), scheduling_strategy=place, max_concurrency=2
                )
                ranks.append(made.remote(str(self._directory), environment))
            yield ranks
        finally:
            for rank in ranks:
                self._ray.kill(rank)
            util.remove_placement_group(group)

    def _await(self, ready: Any, what: str) -> None:
        """Wait for what Ray has to find or to start. Raises `Unavailable`, or `StopRequested`."""
        until = time.monotonic() + PLACE_S
        while not self._ray.wait([ready], timeout=POLL_S)[0]:
            if self._stop.is_set():
                raise StopRequested
            if time.monotonic() > until:
                raise Unavailable(f"the Ray cluster had no {what} within {PLACE_S:.0f} s")

    def _last_event(self, first: Any, events: Any, ends: list[Any]) -> Event:
        """Pass on the first rank's events until the last."""
        begun = asked = False
        while True:
            ready, _ = self._ray.wait([events, *ends], timeout=POLL_S)
            if self._stop.is_set() and not asked:
                if not begun:
                    raise StopRequested
                first.ask_to_stop.remote()
                asked = True
            for reference in ready:
                if reference in ends:
                    ends.remove(reference)
                    if (reason := self._ray.get(reference)) is not None:
                        return decode_event(reason)
                    continue
                try:
                    event = decode_event(self._ray.get(next(events)))
                except StopIteration:
                    return self._reason(ends)
                if isinstance(event, Finished | Stopped | Failed):
                    return event
                begun = begun or isinstance(event, Started)
                self._events.write(encode_event(event))
                self._events.flush()

    def _reason(self, ends: list[Any]) -> Event:
        """Why another rank failed. Raises `RankLost` when none says so."""
        ready, _ = self._ray.wait(ends, num_returns=len(ends), timeout=GRACE_S) if ends else ([], [])
        for end in ready:
            if (reason := self._ray.get(end)) is not None:
                return decode_event(reason)
        raise RankLost("the processes of the training cannot reach each other")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
