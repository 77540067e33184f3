"""What the members wait for that start when needed: a training needs trainer and engine, a search for a bundle the
worker of its pool, weights need the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Set

import msgspec

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.message import decode
from ratchet.core.contract.policy_manifest import BUNDLE
from ratchet.core.contract.state import ENDED, JOBS, POLICIES, JobState
from ratchet.core.rules.algorithms import PROMPTS
from ratchet.core.stores.policies import is_policy_name
from ratchet.local.local_stack.catalog import ENGINE, PROMPT_WORKER, TRAINER

TRAINING = frozenset({TRAINER, ENGINE})
"""The engine is for the policy that a training will make."""
SEARCH, NOTHING = frozenset({PROMPT_WORKER}), frozenset[str]()
NEEDED_BY: Mapping[str, Set[str]] = {JOBS: TRAINING | SEARCH, POLICIES: frozenset({ENGINE})}
"""By bucket: the members that its entries may need."""


class _Job(msgspec.Struct):
    state: JobState
    pool: str = ""


class _Policy(msgspec.Struct):
    """A registered version; a route has neither member."""

    kind: str | None = None
    base_model: str = ""


async def needed_members(bus: Bus) -> set[str]:
    """What jobs and policies need now. Raises `BusUnavailable`."""
    needed: set[str] = set()
    for bucket in NEEDED_BY:
        entries = await Bucket(bus, bucket, msgspec.Raw).items()
        needed.update(*(_needed_by(bucket, entry.value) for entry in entries.values()))
    return needed


async def start_when_needed(bus: Bus, start: Callable[[str], None]) -> None:
    """Start members as jobs and policies come to need them, until nothing is left to start."""

    async def watch(bucket: str, members: Set[str]) -> None:
        waiting = set(members)
        async for changes in Bucket(bus, bucket, msgspec.Raw).watch():
            needs = [_needed_by(bucket, entry.value) for _, entry in changes if entry is not None]
            for name in sorted(waiting & set().union(*needs)):
                start(name)
                waiting.remove(name)
            if not waiting:
                return

    await asyncio.gather(*(watch(bucket, members) for bucket, members in NEEDED_BY.items()))


def _needed_by(bucket: str, value: msgspec.Raw) -> Set[str]:
    """The members that an entry needs: a job that has not ended, and a policy with weights of its own or in its bundle.
    One that cannot be read may be such a one."""
    try:
        if bucket == JOBS:
            job = decode(bytes(value), _Job)
            return NOTHING if job.state in ENDED else SEARCH if job.pool == PROMPTS else TRAINING
        policy = decode(bytes(value), _Policy)
        has_weights = policy.kind is not None and (policy.kind != BUNDLE or is_policy_name(policy.base_model))
        return NEEDED_BY[bucket] if has_weights else NOTHING
    except msgspec.DecodeError:
        return NEEDED_BY[bucket]
