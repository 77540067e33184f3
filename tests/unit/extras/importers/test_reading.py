"""Reading records of files: every form, piece by piece, and what cannot be read in its place."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from ratchet.core.errors import NotFound, Rejected
from ratchet.extras.importers.reading import PIECE, Records, Unreadable, parts_of
from tests.support.hostile import DAMAGED_JSON
from tests.support.imports import write_lines


def values(path: Path) -> list[object]:
    return [record.value for record in Records(path)]


ROWS = [{"a": 1}, {"a": 2}, {"a": 3}]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2),
        "\ufeff" + json.dumps(ROWS),
        "\n".join(map(json.dumps, ROWS)),
        "\r\n\r\n".join(map(json.dumps, ROWS)) + "\r\n",
        json.dumps({"data": ROWS, "meta": {"page": 1}}, indent=2),
        json.dumps({"object": "list", "data": ROWS, "has_more": False}),
    ],
)
def test_every_form_of_json_gives_the_same_records(tmp_path: Path, text: str) -> None:
    plain, packed = tmp_path / "a.json", tmp_path / "b.json.gz"
    plain.write_text(text, encoding="utf-8")
    packed.write_bytes(gzip.compress(text.encode()))

    assert values(plain) == values(packed) == ROWS


@given(
    st.lists(
        st.dictionaries(st.text(max_size=3), st.text('[]{}",\\ x', max_size=8), max_size=3), min_size=1, max_size=5
    ),
    st.integers(0, 4),
)
def test_reading_gives_every_item_of_a_list(
    tmp_path_factory: pytest.TempPathFactory, rows: list[object], indent: int
) -> None:
    file = tmp_path_factory.mktemp("list") / "a.json"
    file.write_text(json.dumps(rows, indent=indent or None))
    assert [(part.number, part.value) for part in parts_of(file)] == list(enumerate(rows, 1))


def test_a_single_object_over_several_lines_is_one_record(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"data": 1, "more": [1]}, indent=2))
    assert values(tmp_path / "a.json") == [{"data": 1, "more": [1]}]


def test_tables_give_their_rows(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2, 3]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    for name, opened in (("b.arrow", pa.ipc.new_stream), ("c.arrow", pa.ipc.new_file)):
        with pa.OSFile(str(tmp_path / name), "wb") as sink, opened(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)

    for name in ("a.parquet", "b.arrow", "c.arrow"):
        assert [(one.where, one.value) for one in Records(tmp_path / name)] == [
            (f"row {number}", row) for number, row in enumerate(ROWS)
        ]


def test_a_folder_is_read_file_by_file_and_each_record_names_its_own(tmp_path: Path) -> None:
    write_lines(tmp_path / "data" / "b.jsonl", {"b": 1}, "{broken")
    write_lines(tmp_path / "data" / "a" / "x.json", {"a": 1})
    write_lines(tmp_path / "data" / ".cache" / "x.json", {"hidden": 1})
    write_lines(tmp_path / "data" / "dataset_info.json", {"features": {}})
    (tmp_path / "data" / "README.md").write_text("no data")

    records = list(Records(tmp_path / "data"))
    assert [(one.index, one.where) for one in records] == [
        (0, "a/x.json line 1"),
        (1, "b.jsonl line 1"),
        (2, "b.jsonl line 2"),
    ]
    assert isinstance(records[2].value, Unreadable)


def test_what_follows_a_broken_item_of_a_list_is_one_unreadable_record(tmp_path: Path) -> None:
    for rest in ("", ",", ', {"a": ', ' {"a": 2}]', ', {"a": nothing}, {"a": 3}]'):
        (tmp_path / "a.json").write_text('[{"a": 1}' + rest)
        first, last = Records(tmp_path / "a.json")
        assert first.value == {"a": 1}
        assert isinstance(last.value, Unreadable)
        assert "cannot be read from here on" in last.value.reason


def test_lists_that_were_joined_are_read_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(f"{ROWS[:1]}\n[]{ROWS[1:]}\n".replace("'", '"'))
    assert values(tmp_path / "a.json") == ROWS


def test_what_follows_a_list_and_is_none_is_unreadable(tmp_path: Path) -> None:
    for rest in ('{"a": 2}', "]", ", 3", "end"):
        (tmp_path / "a.json").write_text('[{"a": 1}]\n' + rest)
        first, last = values(tmp_path / "a.json")
        assert first == {"a": 1}
        assert isinstance(last, Unreadable)
        assert f"{rest[0]!r} follows its end" in last.reason


def test_items_longer_than_a_piece_are_whole(tmp_path: Path) -> None:
    items = ["x" * (3 * PIECE), 12345, "é" * PIECE, [1, 2]]
    (tmp_path / "a.json").write_text(json.dumps(items, ensure_ascii=False))
    assert values(tmp_path / "a.json") == items


def test_a_line_that_is_too_long_is_left_out_and_the_next_one_is_read(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"a": 1}, {"a": "x" * 5000}, {"a": 3})
    first, long, last = Records(path, most_bytes=1000)
    assert (first.value, last.value, last.where) == ({"a": 1}, {"a": 3}, "line 3")
    assert isinstance(long.value, Unreadable)


def test_damaged_lines_are_left_out_one_by_one(tmp_path: Path) -> None:
    damaged = [one for one in DAMAGED_JSON if one]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([b'{"a": 1}', *damaged, b'{"a": 2}']))
    read = values(path)
    assert (read[0], read[-1]) == ({"a": 1}, {"a": 2})
    assert all(isinstance(one, Unreadable) for one in read[1:-1])
    assert len(read) == len(damaged) + 2


def test_a_file_without_anything_readable_is_one_clear_line(tmp_path: Path) -> None:
    for name, blob, problem in (
        ("empty.jsonl", b" \n", "is empty"),
        ("noise.jsonl", b"\x00\xff\n{\n", "is not JSON: line 1"),
        ("noise.parquet", b"PAR1 noise", "not a table"),
        ("noise.arrow", b"ARROW1 noise", "not a table"),
        ("noise.json.gz", b"no gzip", "cannot read"),
        ("damaged.json.gz", gzip.compress(b"[1, 2]")[:10] + b"\xff" * 20, "cannot read"),
    ):
        (tmp_path / name).write_bytes(blob)
        with pytest.raises(Rejected, match=problem):
            values(tmp_path / name)


def test_name_of_a_data_set_of_hub_is_no_file_and_way_to_get_it_is_shown() -> None:
    with pytest.raises(NotFound, match="hf download"):
        Records(Path("owner/dataset"))


def test_a_large_file_takes_little_memory(tmp_path: Path) -> None:
    record = json.dumps({"text": "x" * 10_000})
    lines, items = tmp_path / "a.jsonl", tmp_path / "b.json"
    lines.write_text((record + "\n") * 4000)
    items.write_text("[" + ",".join([record] * 4000) + "]")
    for path in (lines, items):
        tracemalloc.start()
        assert sum(1 for _ in Records(path)) == 4000
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 12 * PIECE  # of 40 MB
