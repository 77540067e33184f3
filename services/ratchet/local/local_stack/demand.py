"""What the members wait for that start when needed: a job needs trainer and engine, a policy the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.message import decode
from ratchet.core.contract.state import ENDED, JOBS, POLICIES, JobState
from ratchet.local.local_stack.catalog import ENGINE, TRAINER

NEEDED_BY: Mapping[str, frozenset[str]] = {JOBS: frozenset({TRAINER, ENGINE}), POLICIES: frozenset({ENGINE})}
"""By bucket: the members that an entry needs. A job needs the engine for the policy that it will make."""


class _Job(msgspec.Struct):
    state: JobState


async def needed_members(bus: Bus) -> set[str]:
    """What jobs and policies need now. Raises `BusUnavailable`."""
    needed: set[str] = set()
    for bucket, members in NEEDED_BY.items():
        entries = await Bucket(bus, bucket, msgspec.Raw).items()
        if any(_needs(bucket, entry.value) for entry in entries.values()):
            needed |= members
    return needed


async def start_when_needed(bus: Bus, start: Callable[[str], None]) -> None:
    """Start members as jobs and policies come to need them, until nothing is left to start."""

    async def watch(bucket: str, members: frozenset[str]) -> None:
        async for changes in Bucket(bus, bucket, msgspec.Raw).watch():
            if any(entry is not None and _needs(bucket, entry.value) for _, entry in changes):
                for name in sorted(members):
                    start(name)
                return

    await asyncio.gather(*(watch(bucket, members) for bucket, members in NEEDED_BY.items()))


def _needs(bucket: str, value: msgspec.Raw) -> bool:
    """Any policy needs its members, and a job that has not ended. One that cannot be read may be such a job."""
    if bucket != JOBS:
        return True
    try:
        return decode(bytes(value), _Job).state not in ENDED
    except msgspec.DecodeError:
        return True
