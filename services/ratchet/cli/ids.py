"""Names of things on a command line: a whole id, the beginning of one, or `latest`. Every command resolves them here.

`latest` is the newest of its kind, `support@latest` the newest of a role. A whole id is itself. `LEAST` characters or
more are the one id that begins with them; where several do, the error names them. Each lookup is of a range of ids.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from ratchet.bus.message import decode
from ratchet.cli.api import get, require_role
from ratchet.cli.connections import addresses_of, objects_of_roles, roles_at, warehouse_of
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.output import console
from ratchet.core.contract.http.console import TrajectoryBrief
from ratchet.core.contract.http.jobs import JobOut, JobsOut
from ratchet.core.contract.http.keys import KeysOut
from ratchet.core.errors import NotFound, Rejected
from ratchet.core.rules.access import ALL_ROLES, RoleSet
from ratchet.core.rules.texts import id_of_name

if TYPE_CHECKING:
    from ratchet.core.stores.warehouse import Warehouse

LATEST = "latest"
LEAST = 4
"""Fewer characters of an id name nothing."""
SHORT, TIMED = 8, 13
"""A listed id has so many characters at least; a UUIDv7 its whole instant, for what is listed beside it may differ."""
CANDIDATES = 5
"""So many ids are named where a beginning is that of several."""
RECENT_RUNS = 50
"""The newest run with an answer is one of so many."""
RECENT_JOBS = 100
"""The newest snapshot is that of one of so many jobs."""

_LATEST = re.compile(r"(?:(?P<role>[a-z0-9_-]{1,64})@)?latest")
_BEGINNING = re.compile(rf"[0-9a-f-]{{{LEAST},35}}")
_JOB = re.compile(r"[0-9A-Za-z_.-]+")
_DIGITS = re.compile(rf"[0-9a-f]{{{LEAST},64}}")
_TRAJECTORIES = """
SELECT DISTINCT trajectory_id FROM (
    SELECT role, trajectory_id FROM trajectories
    WHERE (trajectory_id >= {low:String} AND trajectory_id < {high:String}) OR trajectory_id = {named:String}
    UNION ALL SELECT role, trajectory_id FROM turns
    WHERE (trajectory_id >= {low:String} AND trajectory_id < {high:String}) OR trajectory_id = {named:String}
) WHERE match(role, {roles:String}) ORDER BY trajectory_id != {named:String} LIMIT {most:UInt32}
"""
_AFTER_HEX = "g"
"""Follows every character of an id, so that a beginning with it ends the range of the ids that have the beginning."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest, of one role or of all."""

    role: str | None


def latest_in(text: str, role: str | None = None) -> Latest | None:
    """What `latest`, `support@latest`, or `latest` beside a role asks for; None for an id.

    Raises `Rejected` for two roles.
    """
    match = _LATEST.fullmatch(text)
    if match is None:
        return None
    if role is not None and match["role"] not in (None, role):
        raise Rejected(f"{text} is not of the role {role}")
    return Latest(match["role"] or role)


def only_one(kind: str, text: str, ids: Sequence[str]) -> str | None:
    """The id among those that begin with `text`; None without any. Raises `Rejected` for several."""
    if text in ids:
        return text
    if len(ids) > 1:
        few = sorted(ids)[:CANDIDATES]
        more = " and more" if len(ids) > CANDIDATES else ""
        raise Rejected(f"{text} begins the ids of several {kind}: {', '.join(few)}{more}")
    return ids[0] if ids else None


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """By id its shortest beginning that no other of them has, which names it in commands."""
    ordered = sorted({*ids})
    shared = [0, *(_shared(one, other) for one, other in pairwise(ordered)), 0]
    short: dict[str, str] = {}
    for place, whole in enumerate(ordered):
        is_timed = len(whole) == 36 and whole[14] == "7"
        length = max(TIMED if is_timed else SHORT, shared[place] + 1, shared[place + 1] + 1)
        short[whole] = whole[:length]
    return short


def listed_ids(ids: Iterable[str]) -> dict[str, str]:
    """By id what a table shows of it: short ids on a terminal, whole ones for files and pipes."""
    every = list(ids)
    return short_ids(every) if console.is_terminal else dict(zip(every, every, strict=True))


def job_named(endpoints: Endpoints, text: str, *, acts: bool = False) -> str:
    """The id of a job. Raises `NotFound`, with the command that lists jobs, or `Rejected`.

    `acts`: a command changes it, so `latest` has to leave no doubt about the role.
    """
    latest = latest_in(text)
    if latest is not None:
        newest = _newest_jobs(endpoints, latest, RECENT_JOBS if acts else 1)
        if not newest:
            raise NotFound(f"there is no job{_of(latest)} yet")
        if acts:
            require_one_role(newest)
        return newest[0].training_job_id
    if not _JOB.fullmatch(text):
        raise no_job(text)
    if _is_uuid(text) or len(text) < LEAST:
        return text
    query = urlencode({"prefix": text, "limit": CANDIDATES + 1})
    answer = get(endpoints, "coordinator", f"/v1/jobs?{query}", JobsOut)
    job_id = only_one("jobs", text, [job.training_job_id for job in answer.jobs])
    if job_id is None:
        raise no_job(text)
    return job_id


def require_one_role(jobs: Sequence[JobOut]) -> None:
    """Raise `Rejected` where the newest of these jobs, newest first, is not the only role's."""
    newest, roles = jobs[0], list(dict.fromkeys(job.role for job in jobs))
    if len(roles) > 1:
        short = short_ids(job.training_job_id for job in jobs)[newest.training_job_id]
        raise Rejected(
            f"the latest job is {short} of {newest.role}, and {' and '.join(roles[1:CANDIDATES])} have jobs too:"
            f" name the role, `{newest.role}@{LATEST}`, or the job"
        )


def snapshot_named(endpoints: Endpoints, text: str) -> str:
    """The uri of a snapshot's manifest, by the uri, by its digest, or by the job that has it. Raises as `job_named`."""
    if text.startswith("s3://"):
        return text
    latest = latest_in(text)
    if latest is not None:
        jobs = _newest_jobs(endpoints, latest, RECENT_JOBS)
        uri = next((job.snapshot.uri for job in jobs if job.snapshot is not None), None)
        if uri is None:
            raise NotFound(f"no job{_of(latest)} has a snapshot yet")
        return uri
    try:
        job = get(endpoints, "coordinator", f"/v1/jobs/{job_named(endpoints, text)}", JobOut)
    except NotFound as error:
        objects, roles = objects_of_roles(endpoints)
        stored = objects.find(f"snapshots/{text}") if _DIGITS.fullmatch(text) else []
        manifests = [uri for uri in stored if uri.endswith(".json")]
        own = [uri for uri in manifests if roles.is_every or decode(objects.get(uri))["role"] in roles]
        uris = {uri.rsplit("/", 1)[-1].removesuffix(".json"): uri for uri in own}
        digest = only_one("snapshots", text, list(uris))
        if digest is None:
            raise no_job(text) from error
        return uris[digest]
    if job.snapshot is None:
        raise Rejected(f"job {text} is {job.state} and has no snapshot")
    return job.snapshot.uri


async def stored_trajectory(
    endpoints: Endpoints, text: str, role: str | None = None, *, answered: bool = False
) -> str | None:
    """The id of a trajectory, open or ended; None for a text that is neither an id nor begins that of a stored one.
    What is not of the key's roles is as if it were not stored.

    `latest` is no evaluation, and with `answered` has an answer to a call. Raises `NotFound` without a newest one,
    `Rejected`, also for a name that begins the id of another trajectory, and `Unavailable`.
    """
    if _is_uuid(text):
        return id_of_name(text)
    latest = latest_in(text, role)
    if latest is None and not _BEGINNING.fullmatch(text):
        return None
    roles = roles_at(endpoints, role or (latest and latest.role))
    async with warehouse_of(addresses_of(endpoints)) as warehouse:
        if latest is None:
            return await stored_under(warehouse, text, roles)
        newest = await newest_trajectory(warehouse, latest, datetime.now(UTC), roles, answered=answered)
    if newest is None:
        if latest.role is not None:
            require_role(endpoints, latest.role)
        which = " with an answer" if answered else ""
        raise NotFound(f"there is no trajectory{_of(latest)}{which} yet, those of evaluations apart")
    return newest.trajectory_id


async def newest_trajectory(
    warehouse: Warehouse, latest: Latest, now: datetime, among: RoleSet = ALL_ROLES, *, answered: bool
) -> TrajectoryBrief | None:
    """The newest trajectory, `among` these roles, that is no evaluation; with `answered` the newest of those that have
    an answer."""
    # Most of a command's names are ids: only `latest` needs the list.
    from ratchet.core.stores.trajectory_list import TrajectoryList  # noqa: PLC0415
    from ratchet.core.stores.trajectory_search import TrajectoryFilter  # noqa: PLC0415

    listing = TrajectoryList(warehouse, lambda: now)
    asked = TrajectoryFilter(role=latest.role, within=among.pattern, evaluation=False)
    newest = (await listing.page(asked, RECENT_RUNS if answered else 1)).trajectories
    return next((run for run in newest if not answered or has_answer(run)), None)


def has_answer(one: TrajectoryBrief) -> bool:
    """Whether a person can have seen an answer of it: a call was answered, or its agent reported it without calls."""
    return one.answers > 0 or (one.calls == 0 and one.state == "ended")


async def stored_under(warehouse: Warehouse, text: str, among: RoleSet = ALL_ROLES) -> str | None:
    """The trajectory stored `among` these roles whose id begins with `text`, or the one of that name. Raises `Rejected`
    for several."""
    named = id_of_name(text)
    asked = {"low": text, "high": text + _AFTER_HEX, "named": named, "most": CANDIDATES + 2}
    rows = await warehouse.rows(_TRAJECTORIES, {**asked, "roles": among.pattern or "."})
    ids = [row["trajectory_id"] for row in rows]
    begun = [known for known in ids if known != named or known.startswith(text)]
    if named in ids and begun and begun != [named]:
        raise Rejected(
            f"{text} is the name of the trajectory {named} and begins the id of {min(begun)}: give a whole id"
        )
    return named if named in ids else only_one("trajectories", text, begun)


def trajectory_named(endpoints: Endpoints, text: str, role: str | None = None) -> str:
    """The id of a trajectory; a text that is no stored one's is a name that an agent gave. Raises as
    `stored_trajectory`."""
    return asyncio.run(stored_trajectory(endpoints, text, role)) or id_of_name(text)


def key_named(endpoints: Endpoints, text: str) -> str:
    """The id of an API key. Raises `Rejected`; an unknown one is itself, which the coordinator refuses."""
    if len(text) < LEAST:
        return text
    keys = get(endpoints, "coordinator", "/v1/keys", KeysOut).keys
    if text == LATEST:
        return keys[0].key_id if keys else text
    return only_one("keys", text, [key.key_id for key in keys if key.key_id.startswith(text)]) or text


def _newest_jobs(endpoints: Endpoints, latest: Latest, most: int) -> list[JobOut]:
    asked = {"limit": most, **({"role": latest.role} if latest.role is not None else {})}
    jobs = get(endpoints, "coordinator", f"/v1/jobs?{urlencode(asked)}", JobsOut).jobs
    if not jobs and latest.role is not None:
        require_role(endpoints, latest.role)
    return jobs


def _shared(one: str, other: str) -> int:
    """How many characters both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


def no_job(text: str) -> NotFound:
    """The error for a job that is not kept, with the command that lists those that are."""
    return NotFound(f"no such job: {text}; `ratchet jobs` lists those that are kept")


def _of(latest: Latest) -> str:
    return f" of {latest.role}" if latest.role is not None else ""
