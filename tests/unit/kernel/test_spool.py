"""The spool keeps records in order across restarts, within its bound, and never keeps half a record."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.kernel.errors import BusUnavailable, ConfigError
from ratchet.kernel.spool import Record, Spool

ROOM = 1_000_000


def record(number: int, size: int = 10) -> Record:
    return Record("agent.rl.trajectory.v1", {"ce-id": str(number)}, bytes([number % 256]) * size)


def rewrite_segment(directory: Path, change: Callable[[bytes], bytes]) -> None:
    (segment,) = directory.glob("*.segment")
    segment.write_bytes(change(segment.read_bytes()))


class Broker:
    """Takes records in order; refuses from the `refuse_from`-th batch on."""

    def __init__(self, refuse_from: int | None = None) -> None:
        self.records: list[Record] = []
        self.batches = 0
        self.refuse_from = refuse_from

    async def publish(self, records: Sequence[Record]) -> None:
        if self.refuse_from is not None and self.batches >= self.refuse_from:
            raise BusUnavailable("the broker is away")
        self.batches += 1
        self.records.extend(records)


async def test_records_come_out_in_the_order_they_went_in(tmp_path: Path) -> None:
    spool, broker = Spool(tmp_path, ROOM), Broker()
    for number in range(200):
        assert spool.append(record(number))
    assert await spool.drain(broker.publish) == 200
    assert broker.records == [record(number) for number in range(200)]
    assert (spool.pending, spool.size) == (0, 0)
    spool.close()


async def test_a_restart_keeps_what_was_not_published(tmp_path: Path) -> None:
    spool = Spool(tmp_path, ROOM)
    for number in range(100):
        spool.append(record(number))
    broker = Broker(refuse_from=2)
    with pytest.raises(BusUnavailable):
        await spool.drain(broker.publish, batch=10)
    spool.close()

    again = Spool(tmp_path, ROOM)
    again.append(record(100))
    broker.refuse_from = None
    assert (again.pending, await again.drain(broker.publish)) == (81, 81)
    assert broker.records == [record(number) for number in range(101)]
    again.close()


async def test_what_does_not_fit_is_refused_and_counted(tmp_path: Path) -> None:
    spool, broker = Spool(tmp_path, 1_000), Broker()
    kept = [number for number in range(100) if spool.append(record(number))]
    assert 0 < len(kept) < 100
    assert kept == list(range(len(kept)))
    assert spool.overflowed == 100 - len(kept)
    assert spool.size <= 1_000
    await spool.drain(broker.publish)
    assert broker.records == [record(number) for number in kept]
    assert spool.append(record(7))
    spool.close()


async def test_records_appended_during_a_drain_are_drained_too(tmp_path: Path) -> None:
    spool, broker = Spool(tmp_path, ROOM), Broker()
    spool.append(record(0))

    async def publish(records: Sequence[Record]) -> None:
        await broker.publish(records)
        if len(broker.records) < 5:
            spool.append(record(len(broker.records)))

    assert await spool.drain(publish) == 5
    assert broker.records == [record(number) for number in range(5)]
    spool.close()


async def test_a_frame_cut_off_by_a_crash_is_skipped_and_its_neighbours_survive(tmp_path: Path) -> None:
    spool = Spool(tmp_path, ROOM)
    for number in range(3):
        spool.append(record(number))
    spool.close()
    rewrite_segment(tmp_path, lambda content: content[:-4])

    again, broker = Spool(tmp_path, ROOM), Broker()
    again.append(record(3))
    assert (again.pending, again.damaged) == (3, 1)
    await again.drain(broker.publish)
    assert broker.records == [record(0), record(1), record(3)]
    again.close()


async def test_an_altered_frame_is_not_published(tmp_path: Path) -> None:
    spool = Spool(tmp_path, ROOM)
    spool.append(record(0))
    spool.close()
    rewrite_segment(tmp_path, lambda content: content[:-1] + b"\xff")

    again = Spool(tmp_path, ROOM)
    assert (again.pending, again.damaged, again.size) == (0, 1, 0)
    again.close()


async def test_an_unreadable_cursor_publishes_again_rather_than_losing(tmp_path: Path) -> None:
    spool, broker = Spool(tmp_path, ROOM), Broker(refuse_from=1)
    for number in range(4):
        spool.append(record(number))
    with pytest.raises(BusUnavailable):
        await spool.drain(broker.publish, batch=2)
    spool.close()
    (tmp_path / "cursor").write_text("")

    again, second = Spool(tmp_path, ROOM), Broker()
    assert await again.drain(second.publish) == 4
    again.close()


def test_two_owners_of_one_directory_are_refused(tmp_path: Path) -> None:
    spool = Spool(tmp_path, ROOM)
    with pytest.raises(ConfigError, match="in use by another process"):
        Spool(tmp_path, ROOM)
    spool.close()
    Spool(tmp_path, ROOM).close()


def test_processes_under_one_parent_get_a_directory_each_and_leftovers_are_taken_over(tmp_path: Path) -> None:
    first, second = Spool.claim(tmp_path, ROOM), Spool.claim(tmp_path, ROOM)
    first.append(record(1))
    first.close()
    heir = Spool.claim(tmp_path, ROOM)
    assert heir.pending == 1
    heir.close()
    second.close()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(0, 400)),
            st.tuples(st.just("drain"), st.integers(1, 5)),
            st.tuples(st.just("restart"), st.just(0)),
        ),
        max_size=40,
    )
)
async def test_it_behaves_as_a_queue_in_memory_would(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    directory = tmp_path_factory.mktemp("spool")
    spool, broker, expected = Spool(directory, 3_000), Broker(), list[Record]()
    for number, (step, argument) in enumerate(steps):
        if step == "append" and spool.append(record(number, argument)):
            expected.append(record(number, argument))
        elif step == "drain":
            await spool.drain(broker.publish, batch=argument)
            assert broker.records == expected
        elif step == "restart":
            spool.close()
            spool = Spool(directory, 3_000)
        assert spool.pending == len(expected) - len(broker.records)
        assert spool.size <= 3_000
    await spool.drain(broker.publish)
    assert broker.records == expected
    spool.close()
