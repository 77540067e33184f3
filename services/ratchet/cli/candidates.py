"""A candidate until its gates have decided: what it waits for, and how a command ends that waits with it."""

from __future__ import annotations

from functools import partial
from typing import Annotated, NamedTuple

import typer

from ratchet.cli.api import TIMEOUT_S, get, read_role, segment
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.output import errors, follow_up
from ratchet.cli.waiting import Waiting, goes_on, until
from ratchet.core.contract.http.rollouts import RolloutOut
from ratchet.core.contract.state import PolicyStage, PolicyVersion
from ratchet.core.errors import NotFound, Rejected

WaitForGates = Annotated[
    bool, typer.Option("--wait", help="Return when its gates have decided; exit code 1: they refuse it, 3: undecided.")
]

PASSED = frozenset({PolicyStage.CANARY, PolicyStage.STABLE})
AWAITING_APPROVAL = "awaiting_approval"


class Candidate(NamedTuple):
    """A policy that shall be rolled out."""

    policy: PolicyVersion
    newest: RolloutOut | None
    """The newest rollout of its role: its own, or that of the policy for which it waits."""

    @property
    def rollout(self) -> RolloutOut | None:
        """Its own."""
        own = self.newest is not None and self.newest.candidate.version == self.policy.version
        return self.newest if own else None

    @property
    def is_judged(self) -> bool:
        """Whether its gates have decided, or have left it to a person."""
        is_left = self.rollout is not None and self.rollout.state == AWAITING_APPROVAL
        return is_left or self.policy.stage != PolicyStage.REGISTERED

    @property
    def standing(self) -> str:
        """What it waits for, or what became of it, in words."""
        policy, newest = self
        if policy.stage in PASSED:
            return f"it has passed its gates, and is {policy.stage}"
        if policy.stage != PolicyStage.REGISTERED:
            return f"it is {policy.stage}: {policy.reason}"
        if newest is not None and newest.parked:
            return f"the queue is parked; `ratchet rollout resume {policy.role}` lets it go on"
        if newest is not None and self.rollout is None and newest.finished_at is None:
            return f"it waits for the rollout of {newest.candidate.name}, which is {newest.state}"
        return "its gates begin" if self.rollout is None else _standing_at_gates(self.rollout)


def _standing_at_gates(rollout: RolloutOut) -> str:
    if rollout.fault is not None:
        return f"its gates wait: {rollout.fault}"
    if rollout.state == AWAITING_APPROVAL:
        return f"a person decides, by `ratchet rollout approve {rollout.role}`: {rollout.reason}"
    if rollout.progress is not None:
        return rollout.progress
    over = ", ".join(gate.gate for gate in rollout.gates)
    return f"its gates run; over: {over}" if over else "its gates run"


def read_candidate(endpoints: Endpoints, policy: PolicyVersion, answer_s: float = TIMEOUT_S) -> Candidate:
    """Where a candidate stands now; its stage is read last. `answer_s`: how long each of two answers may take.

    Raises `NotFound` where its role was removed.
    """
    try:
        newest = get(endpoints, "deployer", f"/v1/rollouts/{segment(policy.role)}", RolloutOut, timeout_s=answer_s)
    except NotFound:
        newest = None
    known = {each.version: each for each in read_role(endpoints, policy.role, answer_s).policies}
    if policy.version not in known:
        raise NotFound(f"{policy.name} is not there any more: {policy.role} was removed")
    return Candidate(known[policy.version], newest)


def follow(endpoints: Endpoints, candidate: Candidate, waiting: Waiting, *, quiet: bool) -> Candidate:
    """The candidate once its gates have decided, or the time is up; each change is a line on standard error."""
    shown: set[str] = set()

    def show(seen: Candidate) -> None:
        if not quiet and seen.standing not in shown:
            shown.add(seen.standing)
            errors.print(f"{seen.policy.name}: {seen.standing}", markup=False)

    ask = partial(read_candidate, endpoints, candidate.policy)
    status = follow_up("rollout", "status", candidate.policy.role, directory=endpoints.directory)
    with goes_on(candidate.policy.name, f"`{status}` follows it"):
        return until(lambda seen: seen.is_judged, candidate, ask, show, waiting)


def code_of(candidate: Candidate) -> ExitCode:
    """How a command ends that has waited. Raises `Rejected` for a candidate that its gates have refused."""
    if candidate.policy.stage == PolicyStage.REFUSED:
        raise Rejected(f"{candidate.policy.name}: {candidate.standing}")
    return ExitCode.DONE if candidate.policy.stage in PASSED else ExitCode.PARTLY
