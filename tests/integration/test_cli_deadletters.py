"""`ratchet deadletters` on a real broker: letters are found by number, and what can be read is sent once more."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
import structlog

from ratchet.cli.deadletters import newest, read, replay
from ratchet.kernel.bus import Bus
from ratchet.kernel.errors import NotFound, Rejected
from ratchet.kernel.settings import KernelSettings
from ratchet.messages.operations import DeadLetter
from tests.support.messages import AT, trajectory
from tests.support.running import connected


@pytest.fixture(autouse=True)
def loud_again() -> Iterator[None]:
    """Commands silence the log of their process."""
    yield
    structlog.reset_defaults()


def letter(subject: str, headers: dict[str, str], body: bytes, sequence: int) -> DeadLetter:
    return DeadLetter(
        stream="RL_TRAJECTORIES",
        sequence=sequence,
        consumer="collector-trajectories",
        original_subject=subject,
        reason="rejected",
        detail="it was a bad day",
        at=AT,
        headers=headers,
        body=base64.b64encode(body).decode(),
    )


async def bury(bus: Bus) -> None:
    """A trajectory that was published and died, and one that nobody can read."""
    await bus.publish(trajectory())
    subject, headers, body = bus.seal(trajectory())
    await bus.publish(letter(subject, headers, body, 1))
    await bus.publish(letter(subject, headers, b'{"no": "trajectory"}', 2))


async def test_letters_are_listed_newest_first_and_read_by_number(kernel_settings: KernelSettings) -> None:
    async with connected(kernel_settings) as bus:
        await bury(bus)
        newest_first = [found.number for found in await newest(kernel_settings, 10)]
        last = await bus.last_sequence("RL_DEADLETTERS")
        assert newest_first[:2] == [last, last - 1]
        assert (await read(kernel_settings, last)).letter.sequence == 2
        with pytest.raises(NotFound, match=f"no dead letter {last + 1}"):
            await read(kernel_settings, last + 1)


async def test_a_replay_is_a_new_message_of_the_same_event_and_counts_once(kernel_settings: KernelSettings) -> None:
    async with connected(kernel_settings) as bus:
        await bury(bus)
        number = await bus.last_sequence("RL_DEADLETTERS") - 1
        before = await bus.last_sequence("RL_TRAJECTORIES")
        planned = await replay(kernel_settings, number, dry_run=True)
        assert await bus.last_sequence("RL_TRAJECTORIES") == before
        for _ in range(2):
            assert await replay(kernel_settings, number, dry_run=False) == planned
        stored = await bus.nc.jetstream().get_msg("RL_TRAJECTORIES", before + 1)
        assert (stored.headers or {})["ce-id"] == planned.event_id == trajectory().event_id
        assert await bus.last_sequence("RL_TRAJECTORIES") == before + 1


async def test_what_still_breaks_its_contract_is_not_sent(kernel_settings: KernelSettings) -> None:
    async with connected(kernel_settings) as bus:
        await bury(bus)
        before = await bus.last_sequence("RL_TRAJECTORIES")
        with pytest.raises(Rejected, match="would die again"):
            await replay(kernel_settings, await bus.last_sequence("RL_DEADLETTERS"), dry_run=False)
        assert await bus.last_sequence("RL_TRAJECTORIES") == before
