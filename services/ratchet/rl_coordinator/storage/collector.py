"""Sweeps the object store: reads what is there, then what refers to it, and sets aside what nothing needs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.message import decode
from ratchet.core.contract.http.status import StorageOut, SweptOut
from ratchet.core.contract.state import ENDED, JOBS, POLICIES, ROLLOUT_CHUNKS, ROLLOUTS, JobState
from ratchet.core.errors import Rejected
from ratchet.core.stores.listing import StoredObject
from ratchet.core.stores.objects import Objects
from ratchet.rl_coordinator import metrics
from ratchet.rl_coordinator.storage.domain import (
    PREFIXES,
    Manifest,
    Plan,
    Retention,
    Roots,
    digest_of,
    digests_in,
    is_body,
    is_manifest,
    plan_sweep,
    tally,
)

log = structlog.get_logger()

SLOT = "swept"
"""Key in the coordinator's bucket: when the last sweep began."""


class _Made(msgspec.Struct):
    """The members of any manifest, and of a job, that a sweep looks at itself."""

    training_job_id: str | None = None
    state: JobState | None = None


@dataclass(frozen=True, slots=True)
class _Contents:
    """What the store holds at one moment."""

    listed: Sequence[StoredObject]
    aside: Sequence[StoredObject]
    manifests: Mapping[str, Manifest]
    now: datetime


class Collector:
    """One sweep at a time, also of several coordinators. Whatever cannot be read ends a sweep before it begins."""

    def __init__(self, bus: Bus, objects: Objects, retention: Retention, every_s: float, *, dry_run: bool) -> None:
        """`every_s`: time between sweeps. `dry_run`: ticks change nothing, and log what they would."""
        self._bus = bus
        self._objects = objects
        self._retention = retention
        self._every = timedelta(seconds=every_s)
        self._dry_run = dry_run
        self._slot = Bucket(bus, "coordinator", datetime)
        self._read: dict[str, Manifest] = {}
        self._sweeping = asyncio.Lock()

    async def tick(self) -> None:
        """Sweep if the last sweep of any coordinator is long enough ago."""
        if await self._takes_the_slot():
            await self.sweep(dry_run=self._dry_run)

    async def sweep(self, *, dry_run: bool) -> StorageOut:
        """Look through the store once. Raises `Rejected` when no job and no policy is known although objects are old:
        that is a lost bucket, no unused store; and `Unavailable` or `Unreadable`, before anything was changed."""
        async with self._sweeping:
            contents = await asyncio.to_thread(self._look)
            # After the listing: what is referred to since then is younger than any grace, or was referred to before.
            roots = await self._roots()
            plan = plan_sweep(
                contents.listed,
                contents.aside,
                manifests=contents.manifests,
                roots=roots,
                retention=self._retention,
                now=contents.now,
            )
            if not roots.is_known and not all(is_body(stored.uri) for stored, _ in plan.aside):
                raise Rejected("no job and no policy is known: the store is not swept while its registry is missing")
            if not dry_run:
                plan = await asyncio.to_thread(self._carry_out, plan)
        counts, sizes = tally(plan.aside)
        report = StorageOut(
            dry_run=dry_run,
            objects=len(contents.listed),
            bytes=sum(stored.size for stored in contents.listed),
            set_aside={reason: SweptOut(objects=counts[reason], bytes=sizes[reason]) for reason in counts},
            taken_back=len(plan.back),
            removed=SweptOut(objects=len(plan.gone), bytes=sum(stored.size for stored in plan.gone)),
        )
        log.info("object store swept", **msgspec.to_builtins(report))
        return report

    async def _takes_the_slot(self) -> bool:
        """Whether this coordinator makes the sweep that is due: the first to write its time does.

        An installation that has never swept waits once.
        """
        now, taken = self._bus.now(), False

        def take(last: datetime | None) -> datetime:
            nonlocal taken
            taken = last is not None and now - last >= self._every
            return now if last is None or taken else last

        await self._slot.change(SLOT, take)
        return taken

    def _look(self) -> _Contents:
        listed = [stored for prefix in PREFIXES for stored in self._objects.objects(prefix)]
        aside = self._objects.aside()
        # Listed last wins: what lies in both places is read where it belongs.
        readers = {stored.uri: self._objects.get_aside for stored in aside} | {
            stored.uri: self._objects.get for stored in listed
        }
        self._read = {
            uri: self._read.get(uri) or _manifest(uri, read(uri)) for uri, read in readers.items() if is_manifest(uri)
        }
        return _Contents(listed, aside, self._read, self._objects.now())

    async def _roots(self) -> Roots:
        digests: set[str] = set()
        ended: dict[str, bool] = {}
        is_known = False
        for name in (JOBS, POLICIES, ROLLOUTS, ROLLOUT_CHUNKS):
            for key, entry in (await Bucket(self._bus, name, msgspec.Raw).items()).items():
                body, is_known = bytes(entry.value), True
                digests |= digests_in(body.decode(errors="replace"))
                if name == JOBS:
                    ended[key] = _has_ended(body)
        return Roots(
            digests=frozenset(digests),
            open_jobs=frozenset(job for job in ended if not ended[job]),
            ended_jobs=frozenset(job for job in ended if ended[job]),
            is_known=is_known,
        )

    def _carry_out(self, plan: Plan) -> Plan:
        """What was done of a plan: an object that was written, or set aside, again since it was listed stays.

        First what goes for good, so that an object that was taken back and is set aside again gets a copy of its own.
        """
        removed = [stored for stored in plan.gone if self._objects.remove_aside(stored)]
        for stored in removed:
            log.info("object removed", uri=stored.uri, bytes=stored.size)
        for stored in plan.back:
            self._objects.take_back(stored.uri)
            log.warning("object taken back: something refers to it again", uri=stored.uri)
        moved: list[tuple[StoredObject, str]] = []
        for stored, reason in plan.aside:
            if self._objects.set_aside(stored):
                moved.append((stored, reason))
                metrics.SWEPT.labels(reason).inc()
                metrics.SWEPT_BYTES.labels(reason).inc(stored.size)
                log.info("object set aside", uri=stored.uri, bytes=stored.size, reason=reason)
        return Plan(moved, plan.back, removed)


def _has_ended(body: bytes) -> bool:
    """Whether a job has ended; one that cannot be read may run."""
    try:
        return decode(body, _Made).state in ENDED
    except msgspec.DecodeError:
        return False


def _manifest(uri: str, body: bytes) -> Manifest:
    refers_to = digests_in(body.decode(errors="replace")) - {digest_of(uri) or ""}
    kind = uri.split("/")[3]
    try:
        job = decode(body, _Made).training_job_id or None
    except msgspec.DecodeError:
        kind, job = "unknown", None
    return Manifest(kind=kind, job=job, refers_to=refers_to)
