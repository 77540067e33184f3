"""Checks of a candidate on every replica of its role's engine, and whose fault it is when one fails.

A replica that does not answer at all is away: the check leaves it out and names it, as long as another one answers.
Everything else that an engine does wrong makes the check impossible for now (`Unavailable`, with a line for an
operator): stable goes on serving, and the deployer asks again. Two things are the candidate's own (`Rejected`), where
every replica that answers does them, and answers the same questions under stable's name:

- the engine refuses it in words;
- the engine breaks over it `BREAKS` times, and not because it could not fetch it: it holds the policy, or ended while
  it computed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ratchet.bus.message import JsonObject
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import Rejected, Unavailable

T = TypeVar("T")

BREAKS = 3
"""How often a replica breaks over a policy before the policy is refused."""
BREAK_SPACING_S = 20.0
"""Breaks that follow one another faster count once: a short fault must not refuse a policy."""
CONTROL_IDS = (1, 2, 3, 4, 5)
"""Tokens that every vocabulary has."""
MEND = "end or repair the ones named here, and compare their base model and options with those of the others"
LONGEST_PAUSE_S = 60.0
"""A check that shows nothing is repeated ever more seldom, down to this: it costs the engine that serves stable."""


class ReplicaUnreachable(Unavailable):
    """A replica does not answer at all."""


class ReplicaFailed(Unavailable):
    """A replica failed while it computed an answer."""

    def __init__(self, message: str, *, ended: bool) -> None:
        super().__init__(message)
        self.ended = ended
        """The connection ended without an answer."""


class Inconclusive(Unavailable):
    """A check shows nothing about a candidate yet, for the `times`th time."""

    def __init__(self, message: str, times: int) -> None:
        super().__init__(message)
        self.again_in_s = min(LONGEST_PAUSE_S, 2.0 ** min(times - 1, 10))
        """When to repeat it."""


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of a prompt: its log-probability after those before it, None where the engine computed none."""

    logprob: float | None
    candidates: Mapping[int, float]
    """The log-probabilities of the most likely tokens in its place."""


class Replica(Protocol):
    """One server of an engine. It finds a policy by its name, and refuses one that does not fit it (`Rejected`).

    Every method raises `Unavailable` for a fault of the replica, `ReplicaUnreachable` where it does not answer at all,
    and `ReplicaFailed` where it fails while it computes.
    """

    @property
    def name(self) -> str:
        """How people find it: the engine's name and its address."""
        ...

    @property
    def adapters_only(self) -> bool:
        """Whether it can hold no whole model."""
        ...

    @property
    def logprobs_mode(self) -> str | None:
        """The log-probabilities that settings expect of it, in vLLM's words; None where they name none."""
        ...

    async def models(self) -> Sequence[str]:
        """The names of the models that it holds."""
        ...

    async def ask(self, model: str, prompt: str) -> Sequence[float | None]:
        """The log-probabilities of one short chat completion; None or not finite where the engine computed none.

        Raises `Rejected`.
        """
        ...

    async def score(self, model: str, ids: Sequence[int], candidates: int) -> Sequence[ScoredToken] | None:
        """Each of `ids` but the first, at temperature 1; None from an engine that scores no prompts.

        At most so many candidates each, none where the engine gives none. Raises `Rejected`.
        """
        ...

    async def candidates(self, model: str, ids: Sequence[int], temperature: float, count: int) -> Mapping[int, float]:
        """The likeliest tokens after `ids`, with log-probabilities as the engine reports them for what it draws.

        Empty where it names none. Raises `Rejected`.
        """
        ...

    async def chat_ids(self, model: str, tools: Sequence[JsonObject]) -> Sequence[int] | None:
        """Token ids of the prompt of a short chat that offers these tools; None from an engine that gives none.

        Raises `Rejected` where the chat template refuses them.
        """
        ...

    async def unload(self, model: str) -> None:
        """No longer hold a policy; nothing happens where it holds none of that name."""
        ...


class Engines(Protocol):
    """The engines that serve policies."""

    def replicas(self, role: str) -> Sequence[Replica]:
        """Those of the role's engine. Raises `Unavailable` where no engine serves the role."""
        ...

    def everywhere(self) -> Sequence[Replica]:
        """All of them."""
        ...


Check = Callable[[Replica, str], Awaitable[T]]
"""Asks a replica for the model of a name."""


@dataclass(frozen=True, slots=True)
class Checked(Generic[T]):
    """A check's results by replica, and the replicas that did not answer."""

    results: Mapping[str, T]
    away: Sequence[str]


class ReplicaChecks:
    """Runs checks on all replicas at the same time."""

    def __init__(self, engines: Engines, monotonic: Callable[[], float]) -> None:
        self.engines = engines
        self._monotonic = monotonic
        self._breaks: dict[tuple[str, str], tuple[int, float]] = {}
        """By digest and replica: how often it broke over the policy one after the other, and when it last did."""
        self._doubts: Counter[str] = Counter()
        """By digest."""

    async def on_each(self, candidate: PolicyVersion, stable: PolicyVersion | None, check: Check[T]) -> Checked[T]:
        """`check` on every replica that answers. Raises `Rejected` or `Unavailable`, and names the replicas."""
        present, away = await present_replicas(self.engines, candidate.role)
        outcomes = await asyncio.gather(
            *(self._checked(replica, candidate, stable, check) for replica in present), return_exceptions=True
        )
        faults = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for fault in faults:
            if not isinstance(fault, Unavailable | Rejected):
                raise fault
        refusals = [fault for fault in faults if isinstance(fault, Rejected)]
        words = "; ".join(map(str, faults))
        if refusals and len(refusals) == len(present):
            raise Rejected(words)
        if faults:
            shown = self.inconclusive(candidate, f"{words}; but not on every replica: {MEND}" if refusals else words)
            quotes = refusals or any(fault.quotes for fault in faults if isinstance(fault, Unavailable))
            raise shown.quoting() if quotes else shown
        results = {
            replica.name: outcome
            for replica, outcome in zip(present, outcomes, strict=True)
            if not isinstance(outcome, BaseException)
        }
        return Checked(results, away)

    def inconclusive(self, candidate: PolicyVersion, reason: str) -> Inconclusive:
        """The error of a check that shows nothing about the candidate yet."""
        self._doubts[candidate.digest] += 1
        return Inconclusive(reason, self._doubts[candidate.digest])

    async def _checked(
        self, replica: Replica, candidate: PolicyVersion, stable: PolicyVersion | None, check: Check[T]
    ) -> T:
        """The result of `check` on a replica that has just answered for stable.

        A replica that broke over the candidate before answers the whole check for stable first: where it ends over the
        candidate again, it answers nothing afterwards.
        """
        broke_before = (candidate.digest, replica.name) in self._breaks
        if stable is not None:
            await _control(replica, stable, check if broke_before else _short)
        try:
            result = await check(replica, candidate.name)
        except ReplicaFailed as error:
            raise await self._blamed(replica, candidate, stable, check, error) from error
        except Rejected as error:
            refusal = f"{replica.name}: {error}"
            if stable is not None:
                await _control(replica, stable, check, refusal)
            raise Rejected(refusal) from error
        self._breaks.pop((candidate.digest, replica.name), None)
        return result

    async def _blamed(
        self,
        replica: Replica,
        candidate: PolicyVersion,
        stable: PolicyVersion | None,
        check: Check[T],
        error: ReplicaFailed,
    ) -> Rejected | Unavailable:
        """The error that stands for a break: the replica's for now, the candidate's when it has come often enough."""
        if stable is None or not (error.ended or await _holds(replica, candidate.name)):
            return Unavailable(str(error))
        try:
            await _control(replica, stable, check, str(error))
        except Unavailable as fault:
            if not (error.ended and isinstance(fault, ReplicaUnreachable)):  # an engine that ended answers nothing
                return fault
        now = self._monotonic()
        key = candidate.digest, replica.name
        count, last = self._breaks.get(key, (0, -BREAK_SPACING_S))
        if now - last >= BREAK_SPACING_S:
            count, last = count + 1, now
            self._breaks[key] = count, last
        whenever = f"each time right after it answered for {stable.name}"
        if count >= BREAKS:
            return Rejected(f"{error}; {count} times, {whenever}")
        return Unavailable(f"{error}; time {count} of {BREAKS} before the policy is refused, {whenever}")


async def present_replicas(engines: Engines, role: str) -> tuple[list[Replica], list[str]]:
    """A role's replicas that answer, and the names of those that are away. Raises `Unavailable` when all are."""
    replicas = engines.replicas(role)
    outcomes = await asyncio.gather(*(replica.models() for replica in replicas), return_exceptions=True)
    away = [str(outcome) for outcome in outcomes if isinstance(outcome, ReplicaUnreachable)]
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, ReplicaUnreachable):
            raise outcome
    if len(away) == len(replicas):
        raise Unavailable(f"no replica answers: {'; '.join(away)}; start one, or correct RATCHET_ENGINES")
    pairs = zip(replicas, outcomes, strict=True)
    names = [replica.name for replica, outcome in pairs if isinstance(outcome, ReplicaUnreachable)]
    return [replica for replica in replicas if replica.name not in names], names


async def _short(replica: Replica, model: str) -> object:
    return await replica.score(model, CONTROL_IDS, 0)


async def _control(replica: Replica, stable: PolicyVersion, check: Check[object], failure: str | None = None) -> None:
    """Make a check under stable's name. Raises `Unavailable` where it fails: so the engine is at fault."""
    before = f"{failure}; and " if failure else ""
    try:
        await check(replica, stable.name)
    except ReplicaUnreachable as error:
        fault = ReplicaUnreachable(f"{before}{error}")
        raise (fault.quoting() if failure else fault) from error
    except Unavailable as error:
        so_too = f"so it is with {stable.name}, which serves the role: " if failure else ""
        fault = Unavailable(f"{before}{so_too}{error}")
        raise (fault.quoting() if error.quotes or failure else fault) from error
    except Rejected as error:
        raise Unavailable(
            f"{before}{replica.name} refuses {stable.name} too, which serves the role: {error}; compare its base model "
            "and options with those of the other replicas"
        ).quoting() from error


async def _holds(replica: Replica, model: str) -> bool:
    try:
        return model in await replica.models()
    except Unavailable:
        return False
