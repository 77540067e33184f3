"""Which tasks the deployer says are held out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ratchet.bus.kv import Bucket
from ratchet.canary_deployer.task_sets import HeldOutFiles
from ratchet.core.contract.state import HELD_OUT, HeldOutTasks
from tests.support.fake_bus import fake_bus


def written(path: Path, *questions: str) -> str:
    lines = [
        {"id": one, "messages": [{"role": "user", "content": one}], "expect": {"contains": {"all_of": ["x"]}}}
        for one in questions
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


async def test_a_file_that_cannot_be_read_hides_no_other_of_the_role(tmp_path: Path) -> None:
    bucket = Bucket(fake_bus(), HELD_OUT, HeldOutTasks)
    tasks, solved = written(tmp_path / "tasks.jsonl", "a", "b"), tmp_path / "solved.jsonl"
    objects: Any = None  # no file lies there
    files = HeldOutFiles({"support": [tasks, str(solved)]}, objects, bucket)

    async def held_out() -> int:
        await files.publish()
        entry = await bucket.get("support")
        return len(entry.value.tasks) if entry else 0

    assert await held_out() == 2
    written(solved, "c")
    assert await held_out() == 3
    solved.unlink()
    assert await held_out() == 3, "what the file held stays held out"
    written(solved, "d")
    assert await held_out() == 3
