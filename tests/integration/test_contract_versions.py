"""A breaking change on a real stream: old and new publishers, old and new readers, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import BatchHandler, Consumer, each
from ratchet.bus.received import Received
from ratchet.bus.testing import eventually
from ratchet.core.contract import Feedback, Message, named_id
from ratchet.core.service.settings import SharedSettings
from tests.support.consuming import consuming, projecting
from tests.support.messages import AT
from tests.support.running import connected, running
from tests.support.second_version import FeedbackV2, contracts
from tests.support.servers import Broker

STREAM = "RL_FEEDBACK"


@pytest.fixture
def settings(nats: Broker) -> SharedSettings:
    return SharedSettings(nats_url=nats.url)


@asynccontextmanager
async def both_releases(settings: SharedSettings) -> AsyncIterator[tuple[Bus, Bus]]:
    """A bus of the release that knows only the first version, and one of the next release."""
    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(connected(settings, "old"))
        new = await Bus.connect(settings.bus, name="new", contracts=contracts())
        stack.push_async_callback(new.close)
        yield old, new


def rated(name: str, kind: str = "rating", value: Any = 4.0) -> Feedback:
    trajectory = named_id("trajectory", name)
    feedback = named_id("feedback", name)
    return Feedback(feedback_id=feedback, trajectory_id=trajectory, kind=kind, value=value, at=AT, role="support")


def scored(name: str, score: float) -> FeedbackV2:
    trajectory = named_id("trajectory", name)
    feedback = named_id("feedback", name)
    return FeedbackV2(feedback_id=feedback, trajectory_id=trajectory, score=score, at=AT, role="support")


def collecting(into: list[Any]) -> BatchHandler:
    async def handle(received: Received[Any]) -> Sequence[Message]:
        into.append(received.message)
        return []

    return each(handle)


def reader(bus: Bus, durable: str, kind: type[Message], into: list[Any]) -> Consumer:
    return consuming(bus, {kind: collecting(into)}, durable)


def holds(messages: list[Any], number: int) -> Any:
    async def probe() -> bool:
        return len(messages) >= number

    return probe


async def test_reader_of_the_new_version_gets_both_in_order_and_old_one_its_own(settings: SharedSettings) -> None:
    async with both_releases(settings) as (old, new):
        await old.publish(rated("before", value=5.0))
        await new.ensure_streams()
        await old.publish(rated("during", kind="thumbs", value=False))
        await new.publish(scored("after", 0.5))
        read_by_old: list[Any] = []
        read_by_new: list[Any] = []
        async with running(reader(old, "old", Feedback, read_by_old), reader(new, "new", FeedbackV2, read_by_new)):
            await eventually(holds(read_by_new, 3))
            await eventually(holds(read_by_old, 2))
    assert read_by_new == [scored("before", 1.0), scored("during", 0.0), scored("after", 0.5)]
    assert read_by_old == [rated("before", value=5.0), rated("during", kind="thumbs", value=False)]


async def test_reader_replaced_by_its_next_release_continues_at_its_position(
    settings: SharedSettings,
) -> None:
    async with both_releases(settings) as (old, new):
        first: list[Any] = []
        await old.publish(rated("one"))
        async with running(reader(old, "reader", Feedback, first)):
            await eventually(holds(first, 1))
        await new.ensure_streams()
        await old.publish(rated("two", value=2.5))
        later: list[Any] = []
        async with running(reader(new, "reader", FeedbackV2, later)):
            await eventually(holds(later, 1))
            await asyncio.gather(old.publish(rated("three", value=5.0)), new.publish(scored("four", 0.25)))
            await eventually(holds(later, 3))
    assert first == [rated("one")]
    assert later[0] == scored("two", 0.5)
    assert sorted(message.score for message in later[1:]) == [0.25, 1.0]


async def test_reader_replaced_after_the_writers_has_passed_unknown_versions(
    settings: SharedSettings,
) -> None:
    """Why the readers come first: the place of a durable consumer is behind the last message that it knew."""
    async with both_releases(settings) as (old, new):
        await new.ensure_streams()
        early: list[Any] = []
        async with running(reader(old, "reader", Feedback, early)):
            await new.publish(scored("one", 0.25))
            await old.publish(rated("two"))
            await eventually(holds(early, 1))
        await new.publish(scored("three", 0.75))
        later: list[Any] = []
        async with running(reader(new, "reader", FeedbackV2, later)):
            await eventually(holds(later, 1))
    assert (early, later) == ([rated("two")], [scored("three", 0.75)])


async def test_message_that_cannot_be_upgraded_is_a_dead_letter_alone(
    settings: SharedSettings,
) -> None:
    async with both_releases(settings) as (old, new):
        await new.ensure_streams()
        await old.publish(rated("words", kind="comment", value="nice"))
        await old.publish(rated("stars"))
        read: list[Any] = []
        async with running(reader(new, "new", FeedbackV2, read)):
            await eventually(holds(read, 1))
        letter = await new.nc.jetstream().get_last_msg("RL_DEADLETTERS", "agent.rl.deadletter.v1.RL_FEEDBACK.invalid")
    assert read == [scored("stars", 0.8)]
    assert b"cannot be upgraded to agent.rl.feedback.v2" in (letter.data or b"")


async def test_a_projection_of_the_new_version_folds_both(settings: SharedSettings) -> None:
    async with both_releases(settings) as (old, new):
        await new.ensure_streams()
        await old.publish(rated("one", value=5.0))
        await new.publish(scored("two", 0.5))
        projection = projecting(
            new,
            "scores",
            FeedbackV2,
            kind=float,
            step=lambda total, received: (total or 0.0) + received.message.score,  # type: ignore[attr-defined]
            bucket="coordinator",
        )
        async with running(projection):
            await projection.wait_for(2, deadline_s=120)
    assert projection.state("all") == 1.5
