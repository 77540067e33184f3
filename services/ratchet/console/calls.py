"""Single calls: each is read with the run that it belongs to, for a call has only what is new in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ratchet.bus.message import decode
from ratchet.core.contract import Turn
from ratchet.core.errors import NotFound
from ratchet.core.rules.access import RoleSet
from ratchet.core.stores.history import History

if TYPE_CHECKING:
    from ratchet.core.stores.warehouse import Warehouse

T = TypeVar("T")

RUN_BYTES = 16 * 1024 * 1024
"""Of the calls of a run: more are not read together, and a call is then shown by itself."""
AT_ONCE = 2
"""Runs that are read at the same time: token ids take many times their bytes in memory."""

_OF_CALL = "SELECT role, trajectory_id FROM turns WHERE event_id = {id:String} LIMIT 1"
_BYTES = "SELECT sum(length(body)) AS bytes FROM turns WHERE role = {role:String} AND trajectory_id = {run:String}"
_ALONE = "SELECT body FROM turns WHERE role = {role:String} AND trajectory_id = {run:String} AND event_id = {id:String}"

Show = Callable[[Turn, Sequence[Turn], bool], T]
"""Takes the call, all of its run, and whether the run is too large and the call therefore alone."""


class Calls:
    """Reads calls, each with its run."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._reading = asyncio.Semaphore(AT_ONCE)

    async def shown(self, turn_id: str, show: Show[T], roles: RoleSet) -> T:
        """What `show` makes of a call, in a thread. Raises `NotFound`, also for a call of another role."""
        rows = await self._warehouse.rows(_OF_CALL, {"id": turn_id})
        if not rows or rows[0]["role"] not in roles:
            raise NotFound(f"no call {turn_id} is stored")
        async with self._reading:
            turns, is_alone = await self._run(rows[0]["role"], rows[0]["trajectory_id"], turn_id)
            turn = next((turn for turn in turns if turn.turn_id == turn_id), None)
            if turn is None:  # erased meanwhile
                raise NotFound(f"no call {turn_id} is stored")
            return await asyncio.to_thread(show, turn, turns, is_alone)

    async def _run(self, role: str, run: str, turn_id: str) -> tuple[list[Turn], bool]:
        (size,) = await self._warehouse.rows(_BYTES, {"role": role, "run": run})
        if size["bytes"] <= RUN_BYTES:
            return await History(self._warehouse).messages("turns", Turn, role, [run]), False
        rows = await self._warehouse.rows(_ALONE, {"role": role, "run": run, "id": turn_id})
        return [decode(row["body"], Turn) for row in rows[:1]], True
