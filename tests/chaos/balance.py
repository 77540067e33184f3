"""What was acknowledged against what is stored, and who holds what is not there yet."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import nats.errors
import nats.js.errors

from ratchet.core.errors import RatchetError
from ratchet.local.local_stack.member import MemberState
from tests.chaos.schedule import EVENTS
from tests.chaos.traffic import Traffic
from tests.chaos.world import World

STUCK_S = 300.0
"""Without any progress for so long, what is missing comes no more: on two busy cores a batch may take a minute."""
LOOK_S, SHOW_S = 2.0, 20.0
KILLED_S = 4.0
"""A gateway that is killed may lose what it answered in this time before (G3)."""
FACTS = ("trajectories", "turns", "starts", "trajectory_ends", "feedback", "rewards", "rollouts")


class Stalled(AssertionError):
    """What was acknowledged is not all there, and nothing moves."""


@dataclass
class Balance:
    """One comparison; `faults` is empty where all is as it should be."""

    faults: list[str] = field(default_factory=list[str])
    figures: dict[str, int] = field(default_factory=Counter[str])

    def expect(self, what: str, expected: Iterable[str], stored: Counter[str], allowed: set[str]) -> None:
        """All that is expected is stored once; what is `allowed` may be lost."""
        expected = set(expected)
        missing = expected - stored.keys()
        doubled = [name for name, count in stored.items() if count > 1]
        self.figures[f"{what} acknowledged"] += len(expected)
        self.figures[f"{what} stored"] += len(stored)
        self.figures[f"{what} doubled"] += len(doubled)
        self.figures[f"{what} lost with a gateway"] += len(missing & allowed)
        if lost := sorted(missing - allowed):
            self.faults.append(f"{len(lost)} of {len(expected)} {what} are missing: {', '.join(lost[:3])}")
        if doubled:
            self.faults.append(f"{len(doubled)} {what} are there more than once: {', '.join(sorted(doubled)[:3])}")


async def compare(world: World, traffic: Traffic) -> Balance:
    """What is acknowledged against what is stored now. Raises `RatchetError` while ClickHouse is away."""
    known, balance = traffic.acknowledged, Balance()
    await _compare_events(world, traffic, balance)
    rewards = await world.warehouse.rows(
        "SELECT trajectory_id, revision, count() AS n, argMax(total, at) AS total FROM rewards FINAL"
        " GROUP BY trajectory_id, revision ORDER BY revision"
    )
    totals = {row["trajectory_id"]: row["total"] for row in rewards}
    right = {**known.recorded, **{name: ended.success for name, ended in known.ended.items()}}
    killed = {name for name, ended in known.ended.items() if _killed(world, ended.at)}
    twice = Counter({f"{row['trajectory_id']} revision {row['revision']}": row["n"] for row in rewards})
    balance.expect("rewards", right, Counter(totals.keys()), killed)
    balance.figures["rewards doubled"] += sum(count > 1 for count in twice.values())
    balance.faults += [f"more than one reward: {name}" for name, count in twice.items() if count > 1][:3]
    wrong = [name for name, success in right.items() if name in totals and (totals[name] > 0.5) != success]
    balance.faults += [f"{len(wrong)} rewards are wrong: {wrong[0]} has {totals[wrong[0]]}"] if wrong else []
    await _check_ledger(world, balance)
    stats = traffic.client.stats
    if lost := stats.overflowed + stats.damaged + stats.invalid:
        balance.faults.append(f"the client lost {lost} messages: {stats}")
    if stats.pending:
        balance.faults.append(f"the client still holds {stats.pending} messages")
    unwell = [name for name, member in world.stack.members.items() if member.state is not MemberState.READY]
    balance.faults += [
        f"{name} is {world.stack.members[name].state}: {world.stack.members[name].reason}" for name in unwell
    ]
    return balance


async def _compare_events(world: World, traffic: Traffic, balance: Balance) -> None:
    known = traffic.acknowledged
    late = {name for name, ended in known.ended.items() if _killed(world, ended.at)}
    stored = await _counted(world, "SELECT trajectory_id AS name, count() AS n FROM trajectories FINAL GROUP BY name")
    ours = known.recorded.keys() | known.ended.keys()
    balance.expect("trajectories", ours, Counter({name: n for name, n in stored.items() if name in ours}), late)
    turns = await _counted(world, "SELECT event_id AS name, count() AS n FROM turns FINAL GROUP BY name")
    lost = {name for name, at in known.turns.items() if _killed(world, at)}
    balance.expect("turns", known.turns, Counter({name: n for name, n in turns.items() if name in known.turns}), lost)
    rated = await _counted(world, "SELECT trajectory_id AS name, count() AS n FROM feedback FINAL GROUP BY name")
    balance.expect("opinions", known.rated, rated, set())


async def _counted(world: World, query: str) -> Counter[str]:
    return Counter({row["name"]: row["n"] for row in await world.warehouse.rows(query)})


async def _check_ledger(world: World, balance: Balance) -> None:
    rows = await world.warehouse.rows("SELECT * FROM ledger_balance ORDER BY stream, consumer")
    for row in rows:
        for name in ("stored", "dead", "duplicate", "lost", "missing", "absent"):
            balance.figures[f"ledger {name}"] += row[name]
            if name in ("dead", "lost", "missing", "absent") and row[name]:
                balance.faults.append(f"the ledger of {row['stream']} has {row[name]} {name}")
    watermarks = {row["stream"]: row["watermark"] for row in rows}
    for stream in EVENTS:
        last = await _last(world, stream)
        if watermarks.get(stream, 0) != last:
            balance.faults.append(f"the ledger of {stream} is at {watermarks.get(stream)} of {last}")


async def _last(world: World, stream: str) -> int | None:
    """The last sequence of a stream; None while the broker, or the stream, is not there."""
    try:
        return (await world.connection.jetstream().stream_info(stream)).state.last_seq
    except (nats.errors.Error, nats.js.errors.Error):
        return None


def _killed(world: World, at: float) -> bool:
    """Whether the gateway was killed, or stopped, right after this."""
    return any(at - 0.5 <= end <= at + KILLED_S for end in world.ends.get("gateway", ()))


async def until(world: World, lacking: Callable[[], Awaitable[list[str]]]) -> None:
    """Wait until nothing is `lacking`. Raises `Stalled`, with who holds what, when nothing has moved for `STUCK_S`."""
    before: object = None
    moved_at = time.monotonic()
    shown_at = moved_at + SHOW_S
    while faults := await lacking():
        now = (faults, await _progress(world))
        if now != before:
            before, moved_at = now, time.monotonic()
        if time.monotonic() - moved_at > STUCK_S:
            raise Stalled("\n".join([f"nothing has moved for {STUCK_S:.0f} s:", *faults, *await picture(world)]))
        if time.monotonic() > shown_at:
            world.say(f"waiting: {'; '.join(faults)}")
            shown_at += SHOW_S
        await asyncio.sleep(LOOK_S)


async def settled(world: World, traffic: Traffic) -> Balance:
    """The balance, once everything that was acknowledged is stored, and nothing is wrong. Raises `Stalled`."""
    balance = Balance()

    async def lacking() -> list[str]:
        nonlocal balance
        try:
            balance = await compare(world, traffic)
        except RatchetError as error:
            return [f"ClickHouse is away: {error}"]
        return balance.faults

    await until(world, lacking)
    return balance


async def _progress(world: World) -> object:
    """What grows or shrinks while anything is under way."""

    async def counts() -> Any:
        rows = [await world.warehouse.rows(f"SELECT count() AS n FROM {table}") for table in FACTS]
        return [row[0]["n"] for row in rows]

    return await _or_fault(counts), await _or_fault(lambda: _consumers(world))


async def picture(world: World) -> list[str]:
    """Who holds what: members, streams with their readers, the ledger."""
    members = [
        f"  {name}: {member.state}, {member.restarts} restarts ({member.restarted}), {member.reason}"
        for name, member in world.stack.members.items()
    ]
    ledger = await _or_fault(lambda: world.warehouse.rows("SELECT * FROM ledger_balance ORDER BY stream, consumer"))
    readers = await _or_fault(lambda: _consumers(world))
    lines = [f"  {line}" for held in (readers, ledger) for line in (held if isinstance(held, list) else [held])]
    return [*members, *lines, f"  logs: {world.disk / 'state' / 'logs'}"]


async def _consumers(world: World) -> list[str]:
    jetstream = world.connection.jetstream()
    lines: list[str] = []
    for stream in await jetstream.streams_info():
        name = str(stream.config.name)
        if not name.startswith("RL_"):
            continue
        lines.append(f"{name}: {stream.state.messages} messages up to {stream.state.last_seq}")
        for reader in await jetstream.consumers_info(name) if name in EVENTS else ():
            at = reader.ack_floor.stream_seq if reader.ack_floor else 0
            lines.append(f"  {reader.name}: acked to {at}, {reader.num_pending} to come, {reader.num_ack_pending} open")
    return lines


async def _or_fault(ask: Callable[[], Awaitable[Any]]) -> Any:
    try:
        async with asyncio.timeout(20):
            return await ask()
    except Exception as error:  # noqa: BLE001 - a picture of what is broken, whatever that is
        return f"{type(error).__name__}: {error}"
