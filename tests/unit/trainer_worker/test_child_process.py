"""Starting a training process: what is opened for one that cannot be started is closed again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.trainer_worker.child_process import Child
from ratchet.trainer_worker.job import LOG_FILE
from tests.support.trainer_runs import job_spec

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in /proc")


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_a_training_that_cannot_be_started_leaves_no_file_open(tmp_path: Path) -> None:
    (tmp_path / LOG_FILE).mkdir()
    before = open_files()
    with pytest.raises(IsADirectoryError):
        await Child.start(job_spec("sft", "base", "dataset"), tmp_path, None)
    assert open_files() == before
