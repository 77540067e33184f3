"""Which replica of an engine gets a call: one that answers, with little to do, and the last calls of its trajectory.

A replica has a circuit:

    CLOSED --FAILURES in a row, no connection, or FAILED_CHECKS--> OPEN --healthy--> HALF_OPEN --a call--> CLOSED
                                                                    ^-- a call fails -/

A health check asks the replica itself: one that is open, after a backoff that grows, and one that has answered nothing
for `QUIET_S`. Another process of the gateway has its own view: what each learns costs it one refused connection.

A trajectory's next call repeats its prompt, which its last replica has in its prefix cache. So each trajectory has a
place (CRC-32 of its id), which needs no state and on which all gateways agree. With four replicas and 128 open
trajectories each, .91 of the turns meet the replica of the turn before, and the busiest has 3.5 open calls above the
mean; with the fewest calls alone .25 do, and it has .5. The choice takes 5 to 6 µs of a call.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

FAILURES = 3
"""Failed calls in a row after which a replica gets no more."""
FAILED_CHECKS = 2
"""Failed health checks after which a replica that accepts connections counts as away, if another one works."""
QUIET_S = 10.0
"""A replica that has answered nothing for so long has its health checked."""
BACKOFF_S = 0.5
"""Before the first health check of a replica that is away; doubled before each later one."""
LONGEST_BACKOFF_S = 5.0
"""vLLM takes one or two minutes to start: it is found at most so long after."""
AGAIN_S = 0.1
"""Calls that find all replicas away have their health checked once more, but not sooner after the last check."""
SLACK = 1
SLACK_SHARE = 8
"""How many more open calls the replica near a trajectory may have than the least busy one: `SLACK`, and an eighth."""
RUNS = 10_000
"""Trajectories of which the replicas that failed them are known; the oldest make room."""
LONGEST_COOLDOWN_S = 30.0
"""What a replica may ask for that is busy (`retry-after`)."""


class Circuit(StrEnum):
    """Whether a replica gets calls."""

    CLOSED = "closed"
    OPEN = "open"
    """It gets none until a health check finds it well."""
    HALF_OPEN = "half_open"
    """A health check has found it well: one call tells whether it works."""


class Health(StrEnum):
    """What a health check has shown."""

    WELL = "well"
    GONE = "gone"
    """Nothing listens, or it answers that it does not work."""
    SILENT = "silent"
    """It accepts the connection and answers nothing."""
    UNKNOWN = "unknown"
    """The gateway could not ask."""


@dataclass(slots=True, eq=False)
class Replica:
    """What a process of the gateway knows of a replica."""

    name: str
    place: int
    """Among the replicas of its engine."""
    answered_s: float
    """When it last answered anything, or the gateway started."""
    outstanding: int = 0
    """Calls under way, streams to their end."""
    circuit: Circuit = Circuit.CLOSED
    failures: int = 0
    """Calls in a row that failed by its fault."""
    failed_checks: int = 0
    """Health checks in a row that failed."""
    backoffs: int = 0
    """Failed health checks and openings of its circuit since it last answered a call: how often the backoff doubles."""
    checked_s: float = float("-inf")
    """When its health was last checked."""
    check_at_s: float = 0.0
    """No health check before."""
    cooldown_until_s: float = 0.0
    """It has asked for no calls until then."""
    on_trial: bool = False
    """A call is under way that tells whether it works."""

    @property
    def is_away(self) -> bool:
        """Whether an operator should look after it."""
        return self.circuit is Circuit.OPEN or self.failed_checks >= FAILED_CHECKS


class ReplicaSet:
    """The replicas of one engine. Tells nothing of time and chance by itself: `now_s` and `draw` (0..1) do."""

    def __init__(self, names: Collection[str], now_s: Callable[[], float], draw: Callable[[], float]) -> None:
        self._now_s = now_s
        self._draw = draw
        self._turn = 0
        self._failed = OrderedDict[str, set[Replica]]()
        """By trajectory, the replicas at which its calls have failed since one was answered."""
        self.all: Sequence[Replica] = [Replica(name, place, now_s()) for place, name in enumerate(sorted(names))]

    def choose(self, near: str = "", without: Collection[Replica] = ()) -> Replica | None:
        """The replica for a call; None when all others than those in `without` are open.

        `near`: the call's trajectory, whose calls go to one replica while that has little more to do than the others,
        since it has the beginning of their prompt in its cache. All gateways choose the same one. Not where the last
        call failed: its repetition begins at another one.
        """
        ready = [replica for replica in self.all if replica.circuit is not Circuit.OPEN and replica not in without]
        if near in self._failed:
            ready = [replica for replica in ready if replica not in self._failed[near]] or ready
        if len(ready) < 2:
            return ready[0] if ready else None
        for replica in ready:
            if replica.circuit is Circuit.HALF_OPEN and not replica.on_trial:
                return replica
        now = self._now_s()
        closed = [replica for replica in ready if replica.circuit is Circuit.CLOSED]
        available = [replica for replica in closed if replica.cooldown_until_s <= now]
        # The trajectory's own, else the one with the least to do, from the place of the trajectory on.
        self._turn += not near
        place = zlib.crc32(near.encode()) if near else self._turn
        ordered = sorted((available or closed or ready), key=lambda replica: (replica.place - place) % len(self.all))
        own, least = ordered[0], min(ordered, key=lambda replica: replica.outstanding)
        slack = SLACK + least.outstanding // SLACK_SHARE if near else 0
        return own if own.outstanding <= least.outstanding + slack else least

    def begin(self, replica: Replica) -> None:
        """A call goes to it."""
        replica.outstanding += 1
        replica.on_trial = replica.circuit is Circuit.HALF_OPEN

    def end(self, replica: Replica) -> None:
        """A call to it is over."""
        replica.outstanding -= 1
        replica.on_trial = False

    def began(self, replica: Replica) -> None:
        """It shows a sign of life: its answer will tell whether it works. As a trial, that lets the others follow, and
        the next failure opens the circuit again."""
        replica.answered_s, replica.failed_checks = self._now_s(), 0
        if replica.circuit is Circuit.HALF_OPEN:
            replica.circuit, replica.failures = Circuit.CLOSED, max(replica.failures, FAILURES - 1)

    def answered(self, replica: Replica, near: str = "") -> None:
        """It has answered a call of a trajectory, to the end."""
        self._failed.pop(near, None)
        replica.answered_s = self._now_s()
        replica.failures = replica.failed_checks = replica.backoffs = 0
        replica.circuit = Circuit.CLOSED

    def refused(self, replica: Replica) -> None:
        """It has refused a call that another one may answer: as a trial, that has failed, if there is another one."""
        replica.answered_s, replica.failed_checks = self._now_s(), 0
        if replica.circuit is Circuit.HALF_OPEN and self._can_replace(replica):
            self._open(replica)

    def avoid(self, replica: Replica, near: str) -> None:
        """A trajectory's call has ended there without an answer: its repetition begins elsewhere."""
        if near:
            self._failed.setdefault(near, set()).add(replica)
            if len(self._failed) > RUNS:
                self._failed.popitem(last=False)

    def failed(self, replica: Replica) -> None:
        """A call has failed by its fault. Of one that is open, the call had begun before."""
        replica.failures += 1
        if replica.circuit is Circuit.OPEN:
            return
        if replica.failures >= FAILURES or replica.circuit is Circuit.HALF_OPEN:
            self._open(replica)

    def lost(self, replica: Replica) -> None:
        """There was no connection to it."""
        replica.failures += 1
        if replica.circuit is not Circuit.OPEN:
            self._open(replica)

    def cool_down(self, replica: Replica, wait_s: float) -> None:
        """It has asked for no calls for a while."""
        replica.cooldown_until_s = self._now_s() + min(wait_s, LONGEST_COOLDOWN_S)

    def due(self) -> list[Replica]:
        """Those whose health to check now."""
        now = self._now_s()
        return [
            other
            for other in self.all
            if other.check_at_s <= now and (other.circuit is Circuit.OPEN or now - other.answered_s >= QUIET_S)
        ]

    def may_check(self, without: Collection[Replica]) -> list[Replica]:
        """Those whose health to check for a call that has no other replica."""
        soonest = self._now_s() - AGAIN_S
        return [other for other in self.all if other not in without and other.checked_s <= soonest]

    def health_checked(self, replica: Replica, health: Health) -> None:
        """A health check has shown this.

        A replica that is merely silent may be the only one that works, on a machine without a processor to spare: its
        circuit stays closed while no other one can take its calls.
        """
        replica.checked_s = self._now_s()
        if health is Health.UNKNOWN:
            replica.check_at_s = replica.checked_s + BACKOFF_S
            return
        if health is Health.WELL:
            replica.answered_s, replica.failed_checks, replica.check_at_s = replica.checked_s, 0, 0.0
            if replica.circuit is Circuit.OPEN:
                replica.circuit = Circuit.HALF_OPEN
            return
        replica.failed_checks += 1
        silent = replica.failed_checks >= FAILED_CHECKS and self._can_replace(replica)
        if health is Health.GONE or replica.circuit is not Circuit.CLOSED or silent:
            self._open(replica)
        else:
            self._back_off(replica)

    def _can_replace(self, replica: Replica) -> bool:
        return any(other.circuit is Circuit.CLOSED for other in self.all if other is not replica)

    def _open(self, replica: Replica) -> None:
        replica.circuit = Circuit.OPEN
        self._back_off(replica)

    def _back_off(self, replica: Replica) -> None:
        """No health check for a while: longer each time, and not at the same moment as other processes."""
        backoff_s = min(BACKOFF_S * 2.0 ** min(replica.backoffs, 16), LONGEST_BACKOFF_S)
        replica.backoffs += 1
        replica.check_at_s = self._now_s() + backoff_s * (0.75 + self._draw() / 2)
