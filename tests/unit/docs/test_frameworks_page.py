"""docs/guides/frameworks.md says what the stored results say: what works, and what does not."""

from __future__ import annotations

import msgspec

from tools.docs.frameworks import PAGE, Result, page, stored

WORKING = Result(
    title="Orders",
    language="Python",
    package="orders",
    version="1.2.3",
    setting=["client = Orders(base_url=BASE_URL)"],
    api="responses",
    tasks={"plain": "works", "stream": "works"},
    stream="as made",
    named_by="run",
    recognised_by=["new", "tool_call", "tool_call"],
    trajectories=1,
    linked=2,
)


def test_a_framework_has_a_row_and_the_lines_that_set_it_up() -> None:
    text = page([WORKING])
    row = "| Orders (Python) | 1.2.3 | responses | `plain`, `stream` | as made | `run` |"
    assert f"{row} 1 trajectory, `tool_call`, 2 of 2 linked |" in text
    assert "```python\nclient = Orders(base_url=BASE_URL)\n```" in text
    assert "What does not work" not in text


def test_failed_task_is_listed_with_its_error_and_not_among_workers() -> None:
    failed = msgspec.structs.replace(WORKING, tasks={"plain": "works", "stream": "NotFound: no\nsuch `path`"})
    text = page([failed])
    assert "| `plain` |" in text
    assert "- Orders (Python), `stream`: `NotFound: no such 'path'`" in text


def test_the_page_is_made_of_the_stored_results() -> None:
    assert len(stored()) >= 12
    assert page(stored()) == PAGE.read_text()
