"""Which trajectories are not recorded: by their agents' word, or because someone whom they are about has opted out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from ratchet.core.contract import OptOut
from ratchet.core.contract.erasure import TRAJECTORY
from ratchet.core.errors import BadRequest
from ratchet.core.rules.opt_outs import Ref
from ratchet.core.service.asgi import Request
from ratchet.core.service.opt_outs import KnownOptOuts
from ratchet.gateway.domain.peer_updates import PeerUpdates
from ratchet.gateway.domain.routing import Arm, Arms

RECORD = b"x-ratchet-record"
"""With the value `off`: nothing of the trajectory is recorded, from now on and for good."""
SOURCE = "gateway"
NOT_RECORDED = "nothing of this trajectory is recorded: this is dropped, too"


@dataclass(frozen=True)
class Unrecorded:
    """Decides it for each call, and once more when the call is over: someone may have opted out meanwhile."""

    known: KnownOptOuts
    arms: Arms
    updates: PeerUpdates
    publish: Callable[[OptOut], bool]
    """Puts it on its way; False where there is no room."""
    new_id: Callable[[], str]
    now: Callable[[], datetime]

    def heed(self, arm: Arm, refs: Collection[Ref], *, off: bool = False) -> bool:
        """Whether nothing of a trajectory is recorded. `refs`: whom it is about; `off`: its agent says so.

        What was recorded of it in the role before is erased. In a role in which it begins, it is as in the others.
        """
        if arm.unrecorded:
            return True
        has_begun = arm.assignment is not None or arm.turns > 0
        is_off_elsewhere = any(other.unrecorded for other in self.arms.of_trajectory(arm.trajectory_id))
        if not (off or (is_off_elsewhere and not has_begun) or self.covers(arm.trajectory_id, arm.role, refs)):
            return False
        arm.unrecorded = True
        self.updates.changed(arm)
        if has_begun:
            self.send(TRAJECTORY, arm.trajectory_id, arm.role)
        return True

    def covers(self, trajectory_id: str, role: str, refs: Iterable[Ref]) -> bool:
        """Whether a trajectory, or any one of these, has opted out."""
        return self.known.covers(role, [(TRAJECTORY, trajectory_id), *refs])

    def send(
        self, kind: str, ref: str, role: str, *, is_over: bool = False, erases: bool = True, by: str = SOURCE
    ) -> OptOut | None:
        """Opt out, or in again: here at once, elsewhere as soon as the broker has it. None: there is no room for it.
        `by`: who asks for it."""
        opt_out = OptOut(
            opt_out_id=self.new_id(),
            kind=kind,
            ref=ref,
            at=self.now(),
            role=role,
            is_over=is_over,
            erases=erases,
            source=by,
        )
        if not self.publish(opt_out):
            return None
        self.known.note(opt_out)
        return opt_out


def is_off(request: Request) -> bool:
    """Whether a request's agent wants nothing recorded. Raises `BadRequest` for a value that says something else."""
    value = request.headers.get(RECORD)
    if value is not None and value.strip().lower() != b"off":
        raise BadRequest(f"the header {RECORD.decode()} takes `off` alone", param=RECORD.decode())
    return value is not None
