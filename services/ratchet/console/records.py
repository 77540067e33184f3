"""What the pages show of the records: trajectories, tokens, rollouts, trainings and opinions, on open connections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ratchet.bus.clock import utc_now
from ratchet.bus.kv import Bucket
from ratchet.console import annotation_api, rollouts_api, training_api, trajectories_api
from ratchet.console.annotation import Annotation
from ratchet.console.rollouts import Rollouts
from ratchet.console.tokens import Tokens
from ratchet.console.training import Training
from ratchet.console.trajectories import Trajectories
from ratchet.core.contract.state import JOBS, Job
from ratchet.core.service.control_api import ControlApi
from ratchet.core.stores.trajectory_list import TrajectoryList

if TYPE_CHECKING:
    from ratchet.bus.connection import Bus
    from ratchet.core.stores.objects import Objects
    from ratchet.core.stores.warehouse import Warehouse


@dataclass(frozen=True, kw_only=True)
class Records:
    """By subject."""

    trajectories: Trajectories
    tokens: Tokens
    rollouts: Rollouts
    training: Training
    annotation: Annotation


def records_of(bus: Bus, warehouse: Warehouse, objects: Objects, now: Callable[[], datetime] = utc_now) -> Records:
    """The records behind these connections."""
    listing = TrajectoryList(warehouse, now)
    return Records(
        trajectories=Trajectories(warehouse, listing),
        tokens=Tokens(warehouse, objects),
        rollouts=Rollouts(warehouse, listing),
        training=Training(warehouse, objects, Bucket(bus, JOBS, Job)),
        annotation=Annotation(warehouse, listing, bus, now),
    )


def add_routes(api: ControlApi, records: Records) -> None:
    """Serve all of them."""
    trajectories_api.add_routes(api, records.trajectories, records.tokens)
    rollouts_api.add_routes(api, records.rollouts)
    training_api.add_routes(api, records.training)
    annotation_api.add_routes(api, records.annotation)
