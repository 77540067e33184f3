"""What the members wait for that start when needed: a job needs trainer and engine, weights need the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.message import decode
from ratchet.core.contract.policy_manifest import BUNDLE
from ratchet.core.contract.state import ENDED, JOBS, POLICIES, JobState
from ratchet.core.stores.policies import is_policy_name
from ratchet.local.local_stack.catalog import ENGINE, TRAINER

NEEDED_BY: Mapping[str, frozenset[str]] = {JOBS: frozenset({TRAINER, ENGINE}), POLICIES: frozenset({ENGINE})}
"""By bucket: the members that an entry needs. A job needs the engine for the policy that it will make."""


class _Job(msgspec.Struct):
    state: JobState


class _Policy(msgspec.Struct):
    """A registered version; a route has neither member."""

    kind: str | None = None
    base_model: str = ""


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
    """A job that has not ended, and a policy with weights of its own or in its bundle. One that cannot be read may be
    such a one."""
    try:
        if bucket == JOBS:
            return decode(bytes(value), _Job).state not in ENDED
        policy = decode(bytes(value), _Policy)
        return policy.kind is not None and (policy.kind != BUNDLE or is_policy_name(policy.base_model))
    except msgspec.DecodeError:
        return True
