"""The processes that train one policy together: which passes each of them takes, and what all of them must know.

Every rank holds the policy and the rows, and runs the same program. The loss of a train step is a weighted sum over
tokens, so its gradient is the sum of the gradients of its passes, whichever rank takes which; after that sum all ranks
take the same step. Whatever decides how the program goes on is the same on all ranks, or the first one's.

`alone` is the only rank of a training. Raises `RankLost` wherever another rank has ended.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn

from ratchet.trainer_worker.errors import RankLost, is_lost_peer
from ratchet.trainer_worker.training.algorithms.base import Run, TrainStep
from ratchet.trainer_worker.training.checkpoints import Checkpoint

BUCKET = 1 << 24
"""Gradients that are summed at a time."""
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranks:
    """A rank and how many there are."""

    index: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        """Whether this rank reports, saves and decides."""
        return self.index == 0

    @property
    def alone(self) -> bool:
        """Whether there is no other."""
        return self.count == 1

    def share(self, costs: Sequence[float]) -> list[int]:
        """Which of some pieces of work this rank does: the longest are given away first, each to whom has least."""
        if self.alone:
            return list(range(len(costs)))
        shares: list[list[int]] = [[] for _ in range(self.count)]
        loads = [0.0] * self.count
        for piece in sorted(range(len(costs)), key=lambda index: -costs[index]):
            least = loads.index(min(loads))
            shares[least].append(piece)
            loads[least] += costs[piece]
        return shares[self.index]

    def gather(self, own: T) -> list[T]:
        """What each rank has, in order of the ranks. It is pickled, so it holds no tensors of a GPU."""
        if self.alone:
            return [own]
        theirs: list[Any] = [None] * self.count
        with _together():
            dist.all_gather_object(theirs, own)
        return cast("list[T]", theirs)

    def of_leader(self, own: T) -> T:
        """What the first rank has."""
        if self.alone:
            return own
        value: list[Any] = [own if self.leads else None]
        with _together():
            dist.broadcast_object_list(value, src=0)
        return cast("T", value[0])

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Put the sum over all ranks into `grad` of every one of `parameters`, also where this rank has none."""
        if self.alone:
            return
        for bucket in _buckets(parameters):
            grads = (torch.zeros_like(each) if each.grad is None else each.grad for each in bucket)
            flat = torch.cat([grad.flatten() for grad in grads])
            with _together():
                dist.all_reduce(flat)
            for parameter, part in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
                parameter.grad = part.view_as(parameter)


ALONE = Ranks()


@contextmanager
def connected(index: int, count: int, address: str) -> Iterator[Ranks]:
    """This process as rank `index` of `count`, which find each other by `address` (of `torch.distributed`).

    Every rank has the GPU of its own number, where there are any.
    """
    if count == 1:
        yield ALONE
        return
    if address.startswith("file:"):
        os.environ.setdefault(INTERFACE_VARIABLE, LOOPBACK)  # all on this machine: no other needs to reach them
    if torch.cuda.is_available():
        torch.cuda.set_device(index % torch.cuda.device_count())
    with _together():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, init_method=address, rank=index, world_size=count)
    try:
        yield Ranks(index, count)
    except RuntimeError as error:  # of what the libraries exchange by themselves
        if is_lost_peer(error):
            raise RankLost(f"another process of the training is gone: {error}") from error
        raise
    finally:
        dist.destroy_process_group()


@contextmanager
def _together() -> Iterator[None]:
    """An error here is another rank's end: there is no other reason why ranks cannot speak to each other."""
    try:
        yield
    except RuntimeError as error:
        raise RankLost(f"another process of the training is gone: {error}") from error


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters of one type at a time, about `BUCKET` numbers together; in the same order on every rank."""
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        if bucket and (parameter.dtype != bucket[0].dtype or size + parameter.numel() > BUCKET):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel()
    if bucket:
        yield bucket


class RankRun:
    """`algorithms.base.Run` of one of several ranks: the first one reports and saves, and all do what it decides.

    Every rank calls the same methods in the same order: what one asks, all ask.
    """

    def __init__(self, ranks: Ranks, resume: Checkpoint | None, own: Run | None = None) -> None:
        """`own`: the first rank's."""
        self.resume = resume
        self._ranks = ranks
        self._own = own

    def explained(self, findings: Sequence[str]) -> None:
        if self._own is not None:
            self._own.explained(findings)

    def started(self, samples: int, total_steps: int) -> None:
        if self._own is not None:
            self._own.started(samples, total_steps)

    def stepped(self, step: TrainStep) -> None:
        if self._own is not None:
            self._own.stepped(step)

    def stop_requested(self) -> bool:
        return self._ranks.of_leader(self._own is not None and self._own.stop_requested())

    def checkpoint_due(self, step: int) -> bool:
        return self._ranks.of_leader(self._own is not None and self._own.checkpoint_due(step))

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """See `Run`. Every rank writes; only rank 0's files are kept."""
        if self._own is not None:
            self._own.save(step, write)
            return
        with tempfile.TemporaryDirectory(prefix="rank-") as folder:
            write(Path(folder))
