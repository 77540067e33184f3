"""A worker process that has a warm parent and one training, and prints their process ids: to be killed.

`python -m tests.support.lone_worker <directory>`; the training waits for its job file, which is a pipe.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from ratchet.core.service.logs import configure_logs
from ratchet.trainer_worker.child_process import Streams, library_environment
from ratchet.trainer_worker.warm_link import WarmLink


async def main(directory: Path) -> None:
    link = WarmLink(directory, delay_s=0.0, modules=("sys",))
    running = asyncio.create_task(link.run())
    stdin, _ours = os.pipe()
    process = await link.fork(directory, library_environment(os.environ), Streams(stdin, 2, 2))
    assert process is not None
    sys.stdout.write(f"{link.parent_pid} {process.pid}\n")
    sys.stdout.flush()
    await running


if __name__ == "__main__":
    configure_logs("lone_worker", "error")
    asyncio.run(main(Path(sys.argv[1])))
