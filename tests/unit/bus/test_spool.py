"""The spool keeps records in order across restarts, within its bound, and never keeps half a record."""

import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from ratchet.bus.envelope import Record
from ratchet.bus.spool import FRAME, Spool, waiting_in
from ratchet.core.errors import BusUnavailable, ConfigError

ROOM = 1_000_000


def record(number: int, size: int = 10) -> Record:
    return Record("agent.rl.trajectory.v1", {"ce-id": str(number)}, bytes([number % 256]) * size)


def put(spool: Spool, numbers: range, size: int = 10) -> Spool:
    assert all(spool.append(record(number, size)) for number in numbers)
    return spool


def rewrite_segment(directory: Path, change: Callable[[bytes], bytes]) -> None:
    (segment,) = directory.glob("*.segment")
    segment.write_bytes(change(segment.read_bytes()))


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.segment"))


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.iterdir()}


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
    spool, broker = put(Spool(tmp_path, ROOM), range(200)), Broker()
    assert await spool.drain(broker.publish) == 200
    assert broker.records == [record(number) for number in range(200)]
    assert (spool.pending, spool.size) == (0, 0)
    spool.close()


async def test_a_restart_keeps_unpublished_records(tmp_path: Path) -> None:
    spool = put(Spool(tmp_path, ROOM), range(100))
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


async def test_records_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    spool, broker = Spool(tmp_path, 1_000), Broker()
    kept = [number for number in range(100) if spool.append(record(number))]
    assert 0 < len(kept) < 100
    assert kept == list(range(len(kept)))
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


async def test_spool_frame_cut_off_is_skipped_alone(tmp_path: Path) -> None:
    put(Spool(tmp_path, ROOM), range(3)).close()
    rewrite_segment(tmp_path, lambda content: content[:-4])

    again, broker = Spool(tmp_path, ROOM), Broker()
    again.append(record(3))
    assert (again.pending, again.damaged) == (3, 1)
    await again.drain(broker.publish)
    assert broker.records == [record(0), record(1), record(3)]
    again.close()


@pytest.mark.parametrize(
    "payload",
    [b"\x93\xa1\xff\x80\xc4\x00", b"\x91" * 100_000, b"", b"\x93\xa1x\x80"],
    ids=lambda payload: repr(payload[:8]),
)
async def test_a_whole_frame_without_a_record_costs_no_other_record(tmp_path: Path, payload: bytes) -> None:
    put(Spool(tmp_path, ROOM), range(1)).close()
    frame = FRAME.pack(len(payload), zlib.crc32(payload)) + payload
    rewrite_segment(tmp_path, lambda content: frame + content)

    again, broker = Spool(tmp_path, ROOM), Broker()
    assert (again.pending, again.damaged) == (1, 1)
    await again.drain(broker.publish)
    assert broker.records == [record(0)]
    again.close()


@pytest.mark.parametrize("place", [0, 5, 10_000, 30_001, -1])
async def test_one_altered_byte_costs_one_record_and_is_counted(tmp_path: Path, place: int) -> None:
    put(Spool(tmp_path, ROOM), range(1_000)).close()

    def altered(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[place] ^= 0x41
        return bytes(changed)

    rewrite_segment(tmp_path, altered)

    again, broker = Spool(tmp_path, ROOM), Broker()
    assert (again.pending, again.damaged) == (999, 1)
    await again.drain(broker.publish)
    assert len([kept for kept in broker.records if kept in map(record, range(1_000))]) == 999
    again.close()


async def test_inserted_and_lost_bytes_cost_no_other_record(tmp_path: Path) -> None:
    put(Spool(tmp_path, ROOM), range(10), 50).close()
    rewrite_segment(tmp_path, lambda content: content[:100] + b"\x93\xa4junk" * 9 + content[170:])
    again = Spool(tmp_path, ROOM)
    assert (again.pending, again.damaged) == (9, 1)
    again.close()


def without_a_segment(directory: Path, number: int) -> None:
    segments(directory)[number].unlink()


def without_the_end(directory: Path, number: int) -> None:
    """Cut off behind the first record: what is left is whole."""
    segment = segments(directory)[number]
    content = segment.read_bytes()
    segment.write_bytes(content[: FRAME.size + FRAME.unpack_from(content)[0]])


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("damage", [without_a_segment, without_the_end])
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
async def test_spool_counts_each_record_that_is_missing(
    tmp_path: Path, damage: Callable[[Path, int], None], number: int, closed: bool
) -> None:
    spool = put(Spool(tmp_path / "ours", 8_000), range(40), 100)
    broker, directory = Broker(refuse_from=1), tmp_path / "ours"
    with pytest.raises(BusUnavailable):
        await spool.drain(broker.publish, batch=3)
    if not closed:
        directory = shutil.copytree(directory, tmp_path / "left behind")
    spool.close()
    damage(directory, number)

    broker.refuse_from = None
    again = put(Spool(directory, 8_000), range(40, 41), 100)
    await again.drain(broker.publish)
    again.close()
    came_out = {each.headers["ce-id"] for each in broker.records}
    assert again.damaged == 41 - len(came_out) > 0
    third = Spool(directory, 8_000)
    assert third.damaged == 0
    third.close()


async def test_spool_missing_records_of_a_dead_process_are_counted_by_a_sibling(tmp_path: Path) -> None:
    ours, gone = Spool.claim(tmp_path, 8_000), Spool.claim(tmp_path, 8_000)
    put(gone, range(40), 100).close()
    segments(tmp_path / "1")[1].unlink()
    broker = Broker()
    for orphan in ours.orphans():
        await orphan.drain(broker.publish)
    assert ours.damaged == 40 - len(broker.records) > 0
    ours.close()


async def test_spool_of_an_older_version_is_drained_whole(tmp_path: Path) -> None:
    spool = put(Spool(tmp_path, ROOM), range(4))
    with pytest.raises(BusUnavailable):
        await spool.drain(Broker(refuse_from=1).publish, batch=2)
    spool.close()
    (tmp_path / "appended").unlink()
    (tmp_path / "cursor").write_text(" ".join((tmp_path / "cursor").read_text().split()[:2]))

    again, broker = Spool(tmp_path, ROOM), Broker()
    assert (again.pending, again.damaged) == (2, 0)
    await again.drain(broker.publish)
    assert broker.records == [record(2), record(3)]
    again.close()


async def test_spool_record_that_turns_bad_does_not_stay_pending(tmp_path: Path) -> None:
    spool, broker = put(Spool(tmp_path, ROOM), range(2)), Broker()
    rewrite_segment(tmp_path, lambda content: content[:-1] + b"\xff")
    assert await spool.drain(broker.publish) == 1
    assert (spool.pending, spool.damaged, spool.size) == (0, 1, 0)
    spool.close()


async def test_a_batch_is_bounded_in_bytes_and_a_larger_record_goes_alone(tmp_path: Path) -> None:
    spool, batches = Spool(tmp_path, ROOM), list[int]()
    for size in (400, 400, 400, 5_000, 400):
        spool.append(record(size, size))

    async def publish(records: Sequence[Record]) -> None:
        batches.append(len(records))

    await spool.drain(publish, batch_bytes=1_000)
    assert batches == [2, 1, 1, 1]
    spool.close()


async def test_an_unreadable_cursor_publishes_again_rather_than_losing(tmp_path: Path) -> None:
    spool, broker = put(Spool(tmp_path, ROOM), range(4)), Broker(refuse_from=1)
    with pytest.raises(BusUnavailable):
        await spool.drain(broker.publish, batch=2)
    spool.close()
    (tmp_path / "cursor").write_text("")

    again, second = Spool(tmp_path, ROOM), Broker()
    assert await again.drain(second.publish) == 4
    again.close()


@pytest.mark.parametrize("cursor", ["999999999999 0", "2 0", "1 999999", "1 -5", "-1 0", "1", "1 2 3 4", "one two"])
async def test_a_cursor_that_no_drain_left_passes_over_no_record(tmp_path: Path, cursor: str) -> None:
    put(Spool(tmp_path, ROOM), range(4)).close()
    (tmp_path / "cursor").write_text(cursor)

    again = Spool(tmp_path, ROOM)
    assert (again.pending, again.damaged) == (4, 0)
    put(again, range(4, 6)).close()

    third, broker = Spool(tmp_path, ROOM), Broker()
    assert await third.drain(broker.publish) == 6
    assert broker.records == [record(number) for number in range(6)]
    third.close()


async def test_spool_counts_deleted_segments_and_drains_the_others(
    tmp_path: Path,
) -> None:
    spool, broker = put(Spool(tmp_path, 8_000), range(30), 100), Broker()
    first, *others = segments(tmp_path)
    assert others
    first.unlink()
    drained = await spool.drain(broker.publish)
    assert 0 < drained < 30
    assert broker.records == [record(number, 100) for number in range(30 - drained, 30)]
    assert (spool.pending, spool.damaged, spool.size) == (0, 30 - drained, 0)

    spool.append(record(30))
    for segment in segments(tmp_path):
        segment.unlink()
    assert await spool.drain(broker.publish) == 0
    assert (spool.pending, spool.damaged) == (0, 31 - drained)
    spool.append(record(31))
    assert await spool.drain(broker.publish) == 1
    assert broker.records[-1] == record(31)
    spool.close()


async def test_published_records_free_their_room_when_cursor_cannot_be_written(tmp_path: Path) -> None:
    spool, broker = put(Spool(tmp_path, ROOM), range(10)), Broker()
    (tmp_path / "cursor.new").mkdir()  # as on a disk that takes nothing more
    with pytest.raises(OSError, match=r"cursor\.new"):
        await spool.drain(broker.publish)
    assert segments(tmp_path) == []
    assert (spool.pending, spool.size) == (0, 0)
    (tmp_path / "cursor.new").rmdir()
    spool.append(record(10))
    spool.close()
    again = Spool(tmp_path, ROOM)
    assert await again.drain(broker.publish) == 1
    assert broker.records == [record(number) for number in range(11)]
    again.close()


async def test_spool_on_a_full_disk_takes_no_published_record_for_damaged(tmp_path: Path) -> None:
    spool, broker = put(Spool(tmp_path, ROOM), range(10)), Broker()
    (tmp_path / "cursor.new").mkdir()  # as on a disk that takes nothing more
    with pytest.raises(OSError, match=r"cursor\.new"):
        await spool.drain(broker.publish)
    spool.close()
    again = Spool(tmp_path, ROOM)
    assert (again.pending, again.damaged) == (0, 0)
    again.close()


def test_two_owners_of_one_directory_are_refused(tmp_path: Path) -> None:
    spool = Spool(tmp_path, ROOM)
    with pytest.raises(ConfigError, match="in use by another process"):
        Spool(tmp_path, ROOM)
    spool.close()
    Spool(tmp_path, ROOM).close()


def test_spool_leftovers_are_taken_over(tmp_path: Path) -> None:
    first, second = Spool.claim(tmp_path, ROOM), Spool.claim(tmp_path, ROOM)
    first.append(record(1))
    first.close()
    heir = Spool.claim(tmp_path, ROOM)
    assert heir.pending == 1
    heir.close()
    second.close()


async def test_spool_of_a_dead_process_is_drained_by_a_sibling(tmp_path: Path) -> None:
    spools = [Spool.claim(tmp_path, ROOM) for _ in range(4)]
    for number, spool in enumerate(spools):
        spool.append(record(number))
    gone, alive, also_gone, ours = spools
    gone.close()
    also_gone.close()
    broker = Broker()
    for orphan in ours.orphans():
        await orphan.drain(broker.publish)
    assert broker.records == [record(0), record(2)]
    assert list(ours.orphans()) == []
    assert (alive.pending, ours.pending) == (1, 1)
    for spool in (alive, ours):
        spool.close()
    Spool(tmp_path / "0", ROOM).close()  # a sibling does not hold on to what it has drained


async def test_spool_in_the_parent_is_drained_by_a_process_below(tmp_path: Path) -> None:
    before = Spool(tmp_path, ROOM)
    before.append(record(1))
    ours, broker = Spool.claim(tmp_path, ROOM), Broker()
    assert list(ours.orphans()) == []
    before.close()
    for orphan in ours.orphans():
        await orphan.drain(broker.publish)
    assert broker.records == [record(1)]
    assert list(ours.orphans()) == []
    ours.close()


def test_a_spool_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        spool = Spool.claim(tmp_path / "spools", ROOM)
        spool.append(record(1))
        modes = {path.name: path.stat().st_mode & 0o777 for path in [*tmp_path.rglob("*")]}
        spool.close()
    finally:
        os.umask(before)
    assert modes.pop("spools") == modes.pop("0") == 0o700
    assert set(modes.values()) == {0o600}


def test_an_open_directory_of_ours_is_closed_to_others(tmp_path: Path) -> None:
    directory = tmp_path / "spool"
    directory.mkdir()
    directory.chmod(0o777)
    Spool(directory, ROOM).close()
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_directory_of_another_user_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="belongs to another user"):
        Spool.claim(tmp_path / "link", ROOM)
    if os.geteuid() == 0:
        os.chown(tmp_path / "elsewhere", 12345, 12345)
        with pytest.raises(ConfigError, match="belongs to another user"):
            Spool.claim(tmp_path / "elsewhere", ROOM)


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
async def test_spool_behaves_as_a_queue_in_memory(
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


async def test_spool_is_counted_from_outside_without_a_change(
    tmp_path: Path,
) -> None:
    assert waiting_in(tmp_path / "absent") == 0
    broker, spool = Broker(refuse_from=1), put(Spool(tmp_path, ROOM), range(3))
    assert waiting_in(tmp_path) == 0
    with pytest.raises(BusUnavailable):
        await spool.drain(broker.publish, batch=1)
    spool.close()
    before = contents(tmp_path)
    assert waiting_in(tmp_path) == 2
    assert contents(tmp_path) == before
    (tmp_path / "cursor").write_text("9 9")
    assert waiting_in(tmp_path) == 3
    assert (tmp_path / "cursor").read_text() == "9 9"
    again = Spool(tmp_path, ROOM)  # the count let go of the lock
    assert again.pending == 3
    again.close()
