"""Lines that many writers append at once are all there, each of them whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.core.errors import NotFound, Rejected
from ratchet.core.preferences.records import append, read_lines

WRITER = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from ratchet.core.preferences.records import append

path, process = Path(sys.argv[1]), int(sys.argv[2])

def write(thread):
    for line in range(4):
        append(path, [{"writer": f"{process}-{thread}", "line": line, "text": "x" * 5000}])

with ThreadPoolExecutor(25) as threads:
    list(threads.map(write, range(25)))
"""


def test_a_hundred_writers_in_four_processes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(number)]) for number in range(4)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0, 0]
    lines = list(read_lines(path))
    assert not [line for line in lines if line.problem]
    records = [line.record for line in lines if isinstance(line.record, dict)]
    expected = {(f"{process}-{thread}", line) for process in range(4) for thread in range(25) for line in range(4)}
    assert {(record["writer"], record["line"]) for record in records} == expected
    assert len(records) == len(expected)
    by_writer = [record["line"] for record in records if record["writer"] == "2-7"]
    assert by_writer == [0, 1, 2, 3]


def test_a_line_that_a_crash_cut_short_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    append(path, [{"n": 1}])
    path.write_bytes(path.read_bytes() + b'{"n": ')
    append(path, [{"n": 2}, {"n": 3}])
    lines = list(read_lines(path))
    assert [line.record for line in lines if not line.problem] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert [line.number for line in lines if line.problem] == [2]


def test_nothing_but_the_owner_reads_the_file(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    append(path, [])
    assert not path.exists()
    append(path, [{"n": 1}])
    assert path.stat().st_mode & 0o077 == 0


def test_empty_lines_and_a_byte_order_mark_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"n": 1}\r\n\n  \n{"n": "\xc3\xa4\xe2\x80\xa8"}')
    assert [line.record for line in read_lines(path)] == [{"n": 1}, {"n": "ä\u2028"}]
    with pytest.raises(NotFound):
        list(read_lines(tmp_path / "nowhere.jsonl"))


def test_a_directory_is_no_file_to_read(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="is a directory, not a file"):
        list(read_lines(tmp_path))
