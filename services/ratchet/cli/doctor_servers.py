"""What `ratchet doctor` asks the servers and services: whether they answer, fit, and hold what they should."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Set
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from ratchet.bus.connection import STANDING_S
from ratchet.bus.figures import stream_figures
from ratchet.cli.api import INVALID_KEY, KEY_VARIABLE, get
from ratchet.cli.connections import addresses_of, connected, warehouse_of
from ratchet.cli.doctor_checks import Finding, failure, ok, warning
from ratchet.cli.doctor_upstreams import check_upstreams
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.exit_codes import NoStack
from ratchet.core.contract.http.rollouts import PoliciesOut
from ratchet.core.errors import BusUnavailable, Forbidden, NotPermitted, RatchetError, Rejected
from ratchet.core.rules.engines import ANY_ROLE
from ratchet.core.service.http_client import ApiClient, Peer, bearer
from ratchet.core.stores.schema import schema_digest
from ratchet.local.local_stack.catalog import ENGINE
from ratchet.local.local_stack.plan import ENGINE_KEY_VARIABLE

if TYPE_CHECKING:
    from ratchet.bus.connection import Bus

OLDEST_BROKER, OLDEST_DATABASE = (2, 12), (24, 8)
"""Messages are published together since the first, and JSON is read as we read it since the second."""
SKEW_S = 5.0
"""Clocks that differ by more put trajectories in another order."""
LAG = 10_000
"""Messages that a consumer has not been given: more than it should be behind for long."""
ANSWER_S = 8.0
DEPLOYER = "canary_deployer"


def check_broker(endpoints: Endpoints) -> Finding:
    """Whether NATS answers, and its version."""

    async def ask(bus: Bus) -> Finding:
        version = bus.nc.connected_server_version
        sentence = f"nats-server {version.major}.{version.minor}.{version.patch}"
        if (version.major, version.minor) < OLDEST_BROKER:
            return failure(sentence, f"use {'.'.join(map(str, OLDEST_BROKER))} or newer")
        return ok(sentence)

    return _on_bus(endpoints, ask)


def check_streams(endpoints: Endpoints) -> Finding:
    """Whether every stream and bucket is there, with its limits."""

    async def ask(bus: Bus) -> Finding:
        from nats.js.errors import NotFoundError  # noqa: PLC0415 - its library takes its time

        jetstream: Any = bus.nc.jetstream()  # nats-py types its answers only in parts
        missing: list[str] = []
        full: list[str] = []
        for name, stream in bus.contracts.streams.items():
            try:
                info = await jetstream.stream_info(name)
            except NotFoundError:
                missing.append(name)
                continue
            bound = stream.max_bytes
            if bound and info.state.bytes > 0.9 * bound:
                full.append(f"{name} holds {info.state.bytes / bound:.0%} of {bound / 1e6:.0f} MB")
            if bound and info.config.max_bytes not in (bound, None):
                full.append(f"{name} is bounded at {info.config.max_bytes} bytes, not {bound}")
        for name in bus.contracts.buckets:
            try:
                await jetstream.stream_info(f"KV_{name}")
            except NotFoundError:
                missing.append(name)
        if missing:
            return failure(f"missing: {', '.join(missing)}", "`ratchet up`, or the start of any service, makes them")
        counted = f"{len(bus.contracts.streams)} streams, {len(bus.contracts.buckets)} buckets"
        return warning(f"{counted}; {'; '.join(full)}", "see RATCHET_STREAM_MAX_BYTES") if full else ok(counted)

    return _on_bus(endpoints, ask)


def check_consumers(endpoints: Endpoints) -> Finding:
    """How far consumers are behind, and whether one is stuck at a message."""

    async def ask(bus: Bus) -> Finding:
        behind: list[str] = []
        stuck: list[str] = []
        for name, stream in bus.contracts.streams.items():
            for consumer in (await stream_figures(bus, name)).consumers:
                if consumer.lag > LAG:
                    behind.append(f"{consumer.name} {consumer.lag}")
                if consumer.oldest_s > STANDING_S and stream.retention != "workqueue":
                    stuck.append(f"{consumer.name}: the oldest has waited for {consumer.oldest_s / 60:.0f} min")
        if stuck:
            return warning(f"messages wait: {'; '.join(stuck)}", "the service's log names the message and why")
        if behind:
            return warning(f"behind: {', '.join(behind)}", "`watch ratchet status`: does it fall?")
        return ok("none is stuck or far behind")

    return _on_bus(endpoints, ask)


def check_database(endpoints: Endpoints) -> Finding:
    """Whether ClickHouse answers, its version, its tables and its clock."""

    async def ask() -> Finding:
        async with warehouse_of(addresses_of(endpoints)) as warehouse:
            (row,) = await warehouse.rows("SELECT version() AS version, now64(3, 'UTC') AS now")
            skew = _skew_s(row["now"])
            stored = await warehouse.stored_schemas()
        major, minor, *_ = (int(part) for part in row["version"].split(".")[:2])
        sentence = f"ClickHouse {row['version']}"
        if (major, minor) < OLDEST_DATABASE:
            return failure(sentence, f"use {'.'.join(map(str, OLDEST_DATABASE))} or newer")
        if not stored:
            return failure(f"{sentence} has no tables of Ratchet", "start the stack: it makes them")
        if stored != {schema_digest()}:
            return failure(f"{sentence} has tables of another version", "use that version, or upgrade: start the stack")
        return _with_clock(sentence, skew)

    return asyncio.run(ask())


def check_objects(endpoints: Endpoints) -> Finding:
    """Whether the object store takes an object, and its clock."""
    from ratchet.core.stores.objects import Objects  # noqa: PLC0415 - its library takes its time

    return _with_clock("takes objects", _skew_s(Objects(addresses_of(endpoints)).now()))


def check_engine(endpoints: Endpoints) -> Finding:
    """Whether an engine answers, and has the policies that routes send calls to."""
    record = endpoints.record
    if record is not None and (engine := record.services.get(ENGINE)) is not None and engine.pid is None:
        return ok("starts when needed: no role has a policy yet")
    peer = Peer("the engine", endpoints.url("engine"), bearer(endpoints.env.get(ENGINE_KEY_VARIABLE)), ANSWER_S)
    try:
        answer = ApiClient(peer).ask("GET", "/v1/models", dict[str, Any])
    except Rejected as error:
        return warning(f"not checked: {error}", f"set {ENGINE_KEY_VARIABLE} to the key that the engine asks for")
    loaded = {str(model["id"]) for model in answer.get("data", [])}
    return _part(DEPLOYER, partial(_check_loaded, loaded))(endpoints)


def _check_loaded(loaded: Set[str], endpoints: Endpoints) -> Finding:
    routed = set(_stable_by_role(endpoints).values())
    if absent := sorted(routed - loaded):
        return warning(f"routed and not loaded: {', '.join(absent)}", "the deployer loads them; see its log")
    return ok(f"serves {', '.join(sorted(routed)) or 'no policy yet'}")


def check_routes(endpoints: Endpoints) -> Finding:
    """Whether an engine of `RATCHET_ENGINES` serves each role that a policy serves."""
    engines = addresses_of(endpoints).engines
    if not engines:
        return ok("one engine serves all roles")
    served = _stable_by_role(endpoints)
    named = {role for engine in engines for role in engine.roles}
    if lost := [] if ANY_ROLE in named else sorted(served.keys() - named):
        return failure(
            f"no engine serves {', '.join(f'{role} ({served[role]})' for role in lost)}: every call gets a 502",
            "name the role, or *, in the roles of an engine in RATCHET_ENGINES, and start the services again",
        )
    return ok(f"an engine serves each of {', '.join(sorted(served)) or 'no role yet'}")


def _stable_by_role(endpoints: Endpoints) -> dict[str, str]:
    roles = get(endpoints, "deployer", "/v1/policies", PoliciesOut, timeout_s=ANSWER_S).roles
    return {role.role: role.route.stable.name for role in roles if role.route is not None and role.route.stable}


def _on_bus(endpoints: Endpoints, ask: Callable[[Bus], Any]) -> Finding:
    async def run() -> Finding:
        async with connected(addresses_of(endpoints)) as bus:
            return await ask(bus)

    try:
        return asyncio.run(run())
    except NotPermitted as error:
        return failure(str(error), None)
    except BusUnavailable as error:
        return failure(str(error), "`ratchet status` shows the broker's state, `ratchet logs nats` its log")


def _skew_s(theirs: datetime) -> float:
    return (theirs - datetime.now(UTC)).total_seconds()


def _with_clock(sentence: str, skew_s: float) -> Finding:
    if abs(skew_s) > SKEW_S:
        way = "ahead of" if skew_s > 0 else "behind"
        return warning(f"{sentence}; its clock is {abs(skew_s):.0f} s {way} this machine's", "run NTP on both machines")
    return ok(f"{sentence}; its clock agrees")


def _part(name: str, check: Callable[[Endpoints], Finding]) -> Callable[[Endpoints], Finding]:
    """The check, and where the stack has no such part nothing to check."""

    def run(endpoints: Endpoints) -> Finding:
        try:
            return check(endpoints)
        except NoStack as error:
            return ok(str(error))
        except RatchetError as error:
            if error.code in (INVALID_KEY, Forbidden.code):
                return warning(f"not checked: {error}", f"set {KEY_VARIABLE} to a key with the scope `view`")
            return failure(str(error), f"`ratchet logs {name}` has its last lines")

    return run


SERVERS: Mapping[str, Callable[[Endpoints], Finding]] = {
    "nats": check_broker,
    "streams": check_streams,
    "consumers": check_consumers,
    "clickhouse": _part("clickhouse", check_database),
    "s3": _part("s3", check_objects),
    "engine": _part(ENGINE, check_engine),
    "routes": _part(DEPLOYER, check_routes),
    "upstreams": check_upstreams,
}
"""The checks by name, in the order of the report."""
