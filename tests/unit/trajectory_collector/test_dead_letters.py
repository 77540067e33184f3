"""The watch on the stream of dead letters: people hear of it before it is full, and of what a full one drops."""

from __future__ import annotations

from ratchet.bus.testing import FakeBus
from ratchet.core.contract import Alert
from ratchet.trajectory_collector.dead_letters import STREAM, DeadLetterWatch
from ratchet.trajectory_collector.metrics import DROPPED, FILL
from ratchet.trajectory_collector.nats_streams import Progress, Streams
from tests.support.fake_bus import alerts_on, fake_bus

BOUND, LETTER = 16 * 1024 * 1024, 1024
MOST = BOUND // LETTER


class Flooded(Streams):
    """The stream after so many dead letters of a KiB, less those that were deleted."""

    def __init__(self) -> None:
        self.made = self.deleted = 0

    async def progress(self, stream: str, consumer: str | None = None) -> Progress:
        assert (stream, consumer) == (STREAM, None)
        held = min(self.made - self.deleted, MOST)
        first = self.made - held + 1
        return Progress(0, first, self.made, held, held * LETTER, None, BOUND, "made", refuses=False)


class Scene:
    """A watch, its stream, and the alerts that it publishes."""

    def __init__(self) -> None:
        self.bus: FakeBus = fake_bus()
        self.stream = Flooded()
        self.watch = DeadLetterWatch(self.stream, alerts_on(self.bus))

    async def with_letters(self, made: int) -> list[tuple[str, bool]]:
        """The alerts by key, and whether they are over, once so many were made."""
        self.stream.made = made
        await self.watch.tick()
        return [(alert.key, alert.cleared) for alert in self.bus.published(Alert)]


async def test_watch_alerts_before_the_stream_is_full_and_once() -> None:
    scene = Scene()
    assert await scene.with_letters(MOST // 4) == []
    for share in (0.51, 0.9, 0.99):
        assert await scene.with_letters(int(MOST * share)) == [(f"full:{STREAM}", False)]
    assert FILL.labels(STREAM)._value.get() > 0.98


async def test_watch_counts_and_alerts_what_a_full_stream_drops() -> None:
    scene, before = Scene(), DROPPED._value.get()
    alerts = [await scene.with_letters(made) for made in (MOST, MOST + 700, MOST + 1000)]
    assert DROPPED._value.get() == before + 1000
    assert ("dead letters dropped", False) in alerts[-1]


async def test_watch_takes_deleting_for_no_loss_and_clears_its_alert() -> None:
    scene, before = Scene(), DROPPED._value.get()
    await scene.with_letters(MOST)
    scene.stream.deleted = MOST - 10
    assert await scene.with_letters(MOST) == [(f"full:{STREAM}", False), (f"full:{STREAM}", True)]
    assert DROPPED._value.get() == before
