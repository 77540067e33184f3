"""A broker of its own that knows the users of `ratchet up`, with the permissions that the registry gives them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ratchet.bus.connection import Bus, Patience
from ratchet.bus.settings import BusSettings
from ratchet.core.service.contracts import load_contracts
from ratchet.local.local_stack.broker_users import ADMIN, CONFIG_FILE, BrokerUsers, broker_users
from ratchet.local.local_stack.ports import free_ports
from ratchet.local.local_stack.servers import nats_server
from tests.support.servers import RunningServer, running

ROLE = "helpdesk"
AGENT = "bot"
"""An agent's user, for `ROLE` alone."""


def admin_seed(stack: Path) -> Path:
    """The key of who may do everything on the broker of the local stack in a directory."""
    return broker_users(stack).seed_file(ADMIN)


@dataclass(frozen=True)
class BrokerWithUsers:
    """The running broker and its users."""

    server: RunningServer
    users: BrokerUsers

    @asynccontextmanager
    async def bus(self, user: str, deadline_s: float = 10.0) -> AsyncIterator[Bus]:
        """A connection of a user. Raises `BusUnavailable` where the broker refuses its key."""
        settings = BusSettings(self.server.url, self.users.seed_file(user))
        patience = Patience(deadline_s=deadline_s, quiet=True, reconnect_s=0.05)
        bus = await Bus.connect(settings, name=user, contracts=load_contracts(), patience=patience)
        try:
            yield bus
        finally:
            await bus.close()


@contextmanager
def broker_with_users(folder: Path) -> Iterator[BrokerWithUsers]:
    """Our programs and an agent; nothing is made yet."""
    users = BrokerUsers(folder / "nats")
    users.keep_programs()
    users.add_agent(AGENT, [ROLE])
    port, monitor_port = free_ports(2)
    with running(nats_server(folder / "nats", port, monitor_port, CONFIG_FILE), folder) as server:
        yield BrokerWithUsers(server, users)
