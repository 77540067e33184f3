"""`python -m ratchet.reward_computer.command`: the work of `ratchet rewards`, whose request comes on standard input.

It runs beside the service, with the settings of where it is called: those may describe the next reward function.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime

import msgspec
import structlog

from ratchet.bus.connection import Bus, Patience
from ratchet.bus.message import decode
from ratchet.core.contract.reward_commands import Accepted, Failure, Judges, Line, Progress, Recomputed, RewardCommand
from ratchet.core.errors import BadRequest, RatchetError, Unavailable
from ratchet.core.judging.settings import entry_of
from ratchet.core.preferences.clickhouse_tries import Tries
from ratchet.core.rules.redaction import rules_digest
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.settings import read
from ratchet.core.stores.warehouse import Warehouse
from ratchet.reward_computer.app import NAME, PATIENCE, functions_of, judges_of, ledgers_of
from ratchet.reward_computer.clickhouse_facts import Facts, Key
from ratchet.reward_computer.clickhouse_proposals import Proposals
from ratchet.reward_computer.history_judging import HistoryJudging
from ratchet.reward_computer.judging import Judging
from ratchet.reward_computer.model_notes import ModelNotes
from ratchet.reward_computer.recomputation import Recomputation
from ratchet.reward_computer.settings import Settings

CONNECT_S = 4.0
"""A broker that has not answered by then does not run."""


def main() -> None:
    """Run the command of standard input; its lines go to standard output."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        request = decode(sys.stdin.buffer.read(), RewardCommand)
        emit(asyncio.run(answered(request, read(Settings))))
    except RatchetError as error:
        emit(Failure(message=str(error), passing=isinstance(error, Unavailable)))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


async def answered(request: RewardCommand, settings: Settings) -> Recomputed | Accepted | Judges:
    """The report of a command. Raises an error of the tree."""
    async with recomputation(settings) as work:
        if request.command == "judges":
            return await judges(work, settings, _given(request.since), request.role)
        if request.function is None:
            raise BadRequest("the command names no function")
        if request.command == "accept":
            return await work.accept(request.function)
        return await work.recompute(request.function, _given(request.since), request.role, request.asks)


@asynccontextmanager
async def recomputation(settings: Settings) -> AsyncGenerator[Recomputation]:
    """What a command works with, on connections of its own."""
    async with AsyncExitStack() as stack:
        patience = Patience(deadline_s=CONNECT_S)
        bus = await Bus.connect(
            settings.shared.bus, name=NAME, contracts=load_contracts(), rules=rules_digest(), patience=patience
        )
        stack.push_async_callback(bus.close)
        warehouse = await Warehouse.connect(settings.shared)
        stack.push_async_callback(warehouse.close)
        asked = await stack.enter_async_context(judges_of(settings, bus))
        functions, facts = functions_of(settings, bus), Facts(warehouse)
        judging = Judging(functions, asked, facts, Tries(warehouse), bus.now, PATIENCE, ModelNotes(bus.now))
        history = HistoryJudging(judging, ledgers_of(settings, bus), bus)
        yield Recomputation(functions, facts, Proposals(warehouse), history, bus, on_progress)


async def judges(work: Recomputation, settings: Settings, since: datetime, role: str | None) -> Judges:
    """The judges of the settings, of one role or all, and how far people agree with what they have judged."""
    named = {name: judge.profile for name, judge in settings.judges.items()}
    entries = [entry_of(settings.judges, role)] if role is not None else list(named)
    chosen = {name: named[name] for name in entries if name is not None}
    keys: list[Key] = []
    for name in [role] if role is not None else await work.proposals.roles():
        keys += await work.proposals.judged(name, since)

    testimony = await work.judging.testimony(
        lambda of: named.get(entry_of(settings.judges, of) or ""), keys, False, work.on_progress
    )
    in_force = await work.functions.in_force()
    return Judges(judges=await work.judging.reports(chosen, testimony, in_force.calibrations))


def on_progress(done: int, total: int, what: str) -> None:
    """Say how far it is."""
    emit(Progress(done=done, total=total, what=what))


def emit(line: Line) -> None:
    """One line of the answer."""
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


def _given(since: datetime | None) -> datetime:
    if since is None:
        raise BadRequest("the command says not since when")
    return since


if __name__ == "__main__":
    main()
