"""What a turn costs the deployer: read from its body, and from its header: `python -m tests.bench.bench_turns`.

Both ways read the same turns from a real broker in one process, in pairs; the times are those of the processor.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from nats.aio.msg import Msg

from ratchet.bus.connection import Bus
from ratchet.bus.ordered_reader import OrderedReader, read_summary
from ratchet.canary_deployer.domain.trajectories import Call, call_of
from ratchet.core.contract import Turn
from ratchet.core.contract.roles import role_subject
from ratchet.core.contract.turn import PromptTokens, TurnSummary
from ratchet.core.service.settings import SharedSettings
from tests.support.messages import turn
from tests.support.running import connected
from tests.support.servers import running_nats

TURNS = 400
ROUNDS = 7
SIZES = (0, 1_000, 4_000, 20_000)
"""Tokens of a turn: half prompt, half answer."""

Fold = Callable[[Bus, Msg], Call]


def by_body(bus: Bus, message: Msg) -> Call:
    """What the deployer folds, from the whole turn."""
    received = bus.read(message)[0]
    assert isinstance(received.message, Turn)
    return call_of(received.message.header_summary, received.time.timestamp())


def by_header(bus: Bus, message: Msg) -> Call:
    """The same from the summary in a header."""
    summary = read_summary(bus, message, TurnSummary)
    assert summary is not None
    return call_of(summary, message.metadata.timestamp.timestamp())


def turn_with(draw: random.Random, tokens: int, number: int) -> Turn:
    """A call with so many tokens, and about four characters of text for each."""
    half = tokens // 2
    text = "".join(draw.choices("abcdefghij klmnop", k=4 * half))
    return turn(
        f"{tokens}-{number}",
        prompt_token_ids=PromptTokens(suffix=draw.choices(range(150_000), k=half)) if half else None,
        output_token_ids=draw.choices(range(150_000), k=half) or None,
        behavior_logprobs=[-draw.random() for _ in range(half)] or None,
        messages=[{"role": "user", "content": text}],
        response={"role": "assistant", "content": text},
        role=f"r{tokens}",
    )


async def read_all(bus: Bus, role: str, fold: Fold, *, headers_only: bool) -> tuple[float, list[Call]]:
    """Milliseconds of the processor for each turn of a role, and what was folded of them."""
    reader = OrderedReader(bus, "RL_TURNS", [role_subject(Turn.TOPIC, role)], headers_only=headers_only)
    await reader.open()
    calls: list[Call] = []
    began = time.process_time()
    while len(calls) < TURNS:
        calls += [fold(bus, message) for message in await reader.next(5.0)]
    took = time.process_time() - began
    await reader.close()
    return took * 1000 / TURNS, calls


async def compare(bus: Bus, tokens: int) -> None:
    """Publish turns of one size, and read them both ways in turn."""
    draw, role = random.Random(tokens), f"r{tokens}"
    records = [bus.seal(turn_with(draw, tokens, number)) for number in range(TURNS)]
    for record in records:
        await bus.publish_record(record)
    bodies, headers = list[float](), list[float]()
    for _ in range(ROUNDS):
        body_ms, whole = await read_all(bus, role, by_body, headers_only=False)
        header_ms, short = await read_all(bus, role, by_header, headers_only=True)
        assert whole == short
        bodies.append(body_ms)
        headers.append(header_ms)
    ratio = statistics.median(body / header for body, header in zip(bodies, headers, strict=True))
    size = statistics.median(len(record.body) for record in records)
    print(  # noqa: T201
        f"{tokens:>6} tokens {size / 1024:>6.0f} KiB sent   body {statistics.median(bodies):.3f} ms"
        f"   header {statistics.median(headers):.3f} ms   ratio {ratio:.1f}"
    )


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder, running_nats(Path(folder)) as nats:
        async with connected(SharedSettings(nats_url=nats.url)) as bus:
            for tokens in SIZES:
                await compare(bus, tokens)


if __name__ == "__main__":
    asyncio.run(main())
