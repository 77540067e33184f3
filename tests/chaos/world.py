"""The stack of `ratchet up` as processes, on a disk of its own, behind proxies, before a provider that answers."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import nats
from nats.aio.client import Client as Connection

from ratchet.bus.nats_client import read_seed
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.warehouse import Warehouse
from ratchet.local.local_stack.member import Member, MemberState
from ratchet.local.local_stack.ports import free_ports
from ratchet.local.local_stack.servers import clickhouse_url
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.stack import Stack
from ratchet.local.local_stack.state import keep_secrets
from tests.chaos.clocks import Clocks
from tests.chaos.proxy import Proxy
from tests.chaos.schedule import SERVERS, SERVICES
from tests.support.broker_with_users import admin_seed
from tests.support.fake_engine import FakeProvider, providing

EQUAL, BAD = "equal", "bad"
ROLES = (EQUAL, BAD)
"""Roles whose candidates are as good as stable, and worse."""
KEY_VARIABLE, KEY = "CHAOS_PROVIDER_KEY", "provider-key"
QUICK = {
    "RATCHET_CANARY_STAGES": "50",
    "RATCHET_CANARY_STAGE_MIN_S": "2",
    "RATCHET_CANARY_STAGE_MIN_TRAJECTORIES": "5",
    "RATCHET_CANARY_MARGIN": "0.2",
    "RATCHET_CANARY_SOAK_S": "2",
    "RATCHET_CANARY_HORIZON_S": "120",
    # Machines of tests are slow by the minute; both arms are answered by the same provider.
    "RATCHET_CANARY_METRICS": "failure,missing,reward",
    "RATCHET_CANARY_SAFETY_SUITES": '{"*": {"suites": []}}',
}
"""A deployer that decides within a minute of a few calls a second."""


@dataclass
class World:
    """What faults hit, traffic uses and checks read."""

    stack: Stack
    disk: Path
    proxies: Mapping[str, Proxy]
    clocks: Clocks
    connection: Connection
    """To the broker, not through a proxy."""
    warehouse: Warehouse
    """Likewise."""
    shared: SharedSettings
    """For the agents' client: through proxies."""
    say: Callable[[str], None]
    ends: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """By member: when it was killed, or stopped, by the monotonic clock."""

    def has_ended(self, name: str) -> None:
        """Note that a member is ended, or stopped, now."""
        self.ends.setdefault(name, []).append(time.monotonic())


@dataclass
class _Gateway:
    """As much of a stack as agents and the balance ask for: where the gateway is, and no supervised members."""

    address: str
    members: dict[str, Member] = field(default_factory=dict[str, Member])

    def url(self, _: str) -> str:
        return self.address


@asynccontextmanager
async def world_before(
    gateway: str, brokers: list[str], admin: Path, shared: SharedSettings, disk: Path
) -> AsyncIterator[World]:
    """What others have started, as agents before this gateway and the balance need it. `admin` has the admin's key."""
    connection = await nats.connect(
        brokers,
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.1,
        error_cb=_expected,
        nkeys_seed_str=read_seed(admin).seed,
    )
    try:
        warehouse = await Warehouse.connect(shared)
        try:
            stack, clocks = cast("Stack", _Gateway(gateway)), cast("Clocks", None)
            yield World(stack, disk, {}, clocks, connection, warehouse, shared, print)
        finally:
            await warehouse.close()
    finally:
        await connection.close()


@asynccontextmanager
async def running_world(disk: Path, say: Callable[[str], None]) -> AsyncIterator[World]:
    """Everything, ready. `disk`: a file system of its own, which may be filled; `say`: a line for who watches."""
    state, ports = disk / "state", dict(zip(SERVERS, free_ports(len(SERVERS)), strict=True))
    proxies = {
        name: Proxy(port, ports[name], renames=name == "clickhouse")
        for name, port in zip(SERVERS, free_ports(len(SERVERS)), strict=True)
    }
    health = dict(zip(_health_names(), free_ports(len(SERVICES)), strict=True))
    state.mkdir(mode=0o700, parents=True)
    password = keep_secrets(state).clickhouse_password
    clocks = Clocks(disk.parent / "clocks")
    noted: list[Callable[[str], None]] = []

    def changed(member: Member) -> None:
        if member.state is MemberState.CRASHED:
            for note in noted:
                note(member.name)

    async with AsyncExitStack() as held:
        provider = await held.enter_async_context(providing(FakeProvider(key=KEY)))
        for proxy in proxies.values():
            await proxy.start()
            held.push_async_callback(proxy.stop)
        env = {
            **QUICK,
            **gateway_settings(provider),
            **clocks.env(list(health.values())),
            "RATCHET_NATS_URL": f"nats://127.0.0.1:{proxies['nats'].port}",
            "RATCHET_S3_ENDPOINT": f"http://127.0.0.1:{proxies['s3'].port}",
            "RATCHET_CLICKHOUSE_URL": clickhouse_url(proxies["clickhouse"].port, password),
        }
        settings = StackSettings(
            directory=state, ports={**ports, **health}, free_ports=True, only=(*SERVERS, *SERVICES), env=env
        )
        stack = await held.enter_async_context(Stack(settings, changed))
        connection = await nats.connect(
            f"nats://127.0.0.1:{ports['nats']}",
            max_reconnect_attempts=-1,
            error_cb=_expected,
            nkeys_seed_str=read_seed(admin_seed(state)).seed,
        )
        held.push_async_callback(connection.close)
        direct = SharedSettings(clickhouse_url=clickhouse_url(ports["clickhouse"], password))
        warehouse = await Warehouse.connect(direct)
        held.push_async_callback(warehouse.close)
        shared = SharedSettings(
            nats_url=env["RATCHET_NATS_URL"], nats_seed_file=admin_seed(state), data_dir=disk.parent / "agent"
        )
        world = World(stack, disk, proxies, clocks, connection, warehouse, shared, say)
        noted.append(world.has_ended)
        yield world


async def _expected(_: Exception) -> None:
    """Connections to a broker that is killed break."""


def _health_names() -> list[str]:
    shorts = ("gateway", "collector", "reward", "coordinator", "deployer")
    return [f"{short}_health" for short in shorts]


def gateway_settings(provider: str) -> dict[str, str]:
    """Variables of a gateway in front of this provider, which answers for the roles."""
    upstream = {"name": "provider", "base_url": provider, "api_key_env": KEY_VARIABLE, "models": {"*": "big-model"}}
    return {
        KEY_VARIABLE: KEY,
        "RATCHET_GATEWAY_UPSTREAMS": json.dumps([upstream]),
        "RATCHET_GATEWAY_ROLES": json.dumps(list(ROLES)),
    }
