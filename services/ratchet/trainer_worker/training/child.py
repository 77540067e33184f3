"""The training process: reads a job directory, trains, and writes one JSON line per event to its standard output.

Forked from the warm parent, or run as `python -m ratchet.trainer_worker.training.child <job directory>`. It works in
the job directory; every path that it is given is absolute. SIGTERM asks it to stop at the next step boundary with
a checkpoint. It ends at once when its standard input closes: that is how it learns that the worker has died. It uses no
network, unless the base model is a name that transformers has to look up.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from pathlib import Path

from ratchet.trainer_worker.errors import error_code
from ratchet.trainer_worker.job import Failed, encode_event, read_job


def main(directory: Path) -> int:
    """Train; returns the exit status, 0 also for a stop on request."""
    # Standard output is for events; whatever libraries print goes to standard error.
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.chdir(directory)
    try:
        spec = read_job(directory)
        # After the job file was read: importing torch takes seconds, and fails where the extra is missing.
        from ratchet.trainer_worker.training.child_run import train  # noqa: PLC0415

        last = train(spec, directory, events, stop)
    except Exception as error:  # noqa: BLE001 - the boundary of the process: every failure becomes an event
        traceback.print_exc()
        code = error_code(error)
        last = Failed(code=code, message=str(error) or type(error).__name__, traceback=traceback.format_exc()[-4000:])
    events.write(encode_event(last))
    events.flush()
    return 1 if isinstance(last, Failed) else 0


def _end_with_parent() -> None:
    """Blocks until the worker closes our standard input, by will or by dying."""
    while os.read(0, 1024):
        pass
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
