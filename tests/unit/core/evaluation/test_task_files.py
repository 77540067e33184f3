"""Task files: bad lines are named by number, and a file with one is no file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.errors import NotFound, Rejected
from ratchet.core.evaluation import task_files
from ratchet.core.evaluation.task_files import parse_tasks, read_task_file


def line(name: str, **changes: Any) -> bytes:
    plain = {"id": name, "messages": [{"role": "user", "content": name}], "expect": {"contains": {"all_of": ["x"]}}}
    return json.dumps(plain | changes).encode()


def problems(content: bytes) -> str:
    with pytest.raises(Rejected) as refused:
        parse_tasks(content, "t.jsonl")
    return str(refused.value)


def test_a_file_has_its_tasks_in_order_and_a_digest(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + line("b") + b"\r\n\n" + line("a", seed=3, max_tokens=5) + b"\n")
    file = read_task_file(path)
    assert [one.task.id for one in file.tasks] == ["b", "a"]
    assert (file.tasks[1].task.seed, file.tasks[1].task.max_tokens) == (3, 5)
    assert file.digest != parse_tasks(line("b"), "t").digest


def test_bad_lines_are_named_by_number_and_quote_nothing() -> None:
    content = b"\n".join(
        [line("a"), b"", b"{secret", line("b", expect={"contian": {}}), line("a"), line("c", expect={"pattern": "("})]
    )
    words = problems(content)
    assert words.startswith("t.jsonl: line 3: /: not JSON")
    assert "line 4: /expect: " in words
    assert "line 5: line 1 has the same id" in words
    assert "line 6: /expect/pattern: it is no regular expression" in words
    assert "secret" not in words


def test_only_the_first_bad_lines_are_named() -> None:
    words = problems(b"\n".join([b"{}"] * 25))
    assert words.count("line ") == task_files.MOST_PROBLEMS
    assert words.endswith("; and 15 more")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"[1]", b"\xff\xfe", line("a", id=""), line("a", id="x\ny")])
def test_what_holds_no_task_is_refused(content: bytes) -> None:
    assert "t.jsonl" in problems(content)


def test_too_many_tasks_and_too_many_bytes_are_refused() -> None:
    assert "10001 tasks" in problems(b"\n".join([b"{}"] * 10_001))
    assert "bytes" in problems(b" " * (task_files.MOST_BYTES + 1))


def test_a_line_that_is_nested_too_deeply_is_a_bad_line() -> None:
    assert "line 1: " in problems(b'{"id":' + b"[" * 100_000)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no such file: .*none\.jsonl"):
        read_task_file(tmp_path / "none.jsonl")
    with pytest.raises(NotFound, match="cannot read"):
        read_task_file(tmp_path)


def test_of_a_longer_file_the_same_tasks_are_drawn_for_a_seed() -> None:
    file = parse_tasks(b"\n".join(line(f"t{n}") for n in range(50)), "t")
    first, again, other = ([one.task.id for one in file.drawn(10, seed)] for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 10
    assert len(file.drawn(50, 1)) == 50
