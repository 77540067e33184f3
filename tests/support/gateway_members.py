"""Several gateways as members of a local stack: they share a port, and its supervision keeps them at work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ratchet.bus.tasks import end
from ratchet.local.local_stack.catalog import GATEWAY, SERVICES, gateway_names, health_port_name
from ratchet.local.local_stack.member import Member
from ratchet.local.local_stack.plan import shared_port_programs
from ratchet.local.local_stack.ports import free_ports
from ratchet.local.local_stack.settings import StackSettings


@asynccontextmanager
async def gateway_members(nats_url: str, engine_url: str, folder: Path, number: int = 2) -> AsyncIterator[list[Member]]:
    """So many gateways, ready, and watched as `ratchet up` watches its members."""
    spec = next(spec for spec in SERVICES if spec.name == GATEWAY)
    names = [spec.short, *map(health_port_name, gateway_names(number))]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    env = {"RATCHET_NATS_URL": nats_url, "RATCHET_ENGINE_URL": engine_url}
    settings = StackSettings(folder, gateways=number)
    members = [
        Member(program, folder / f"{program.name}.log", {}, settings, lambda _: None)
        for program in shared_port_programs(spec, number, ports, env, folder / "data")
    ]

    async def watch(member: Member) -> None:
        while True:
            await member.watch()
            await asyncio.sleep(settings.look_s)

    watching = list[asyncio.Task[None]]()
    try:
        await asyncio.gather(*(member.start() for member in members))
        watching = [asyncio.create_task(watch(member)) for member in members]
        yield members
    finally:
        await end(*watching)
        await asyncio.gather(*(member.stop() for member in members))
