"""Publishes trajectories by the client of whichever `ratchet` it is run with; prints its figures as JSON.

Run by `bench_plane`: `python plane_publisher.py NUMBER KB TURNS [PER_SECOND]`. It knows only what all versions share.
"""

from __future__ import annotations

import json
import sys
import time

from ratchet import Client


def conversation(size: int, turns: int) -> list[dict[str, str]]:
    """Messages of about `size` characters together."""
    words = "the order arrives on tuesday after the depot has counted it again " * (size // 60 + 1)
    each = size // (2 * turns)
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": f"{n}: {words[n : n + each]}"} for n in range(2 * turns)]


def main() -> None:
    """Publish at full pace, or evenly; then wait until the broker has acknowledged all."""
    number, size, turns = int(sys.argv[1]), int(float(sys.argv[2]) * 1000), int(sys.argv[3])
    pause = 1 / float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
    messages = conversation(size, turns)
    sent: dict[str, float] = {}
    waited_s: list[float] = []
    processor, started = time.process_time(), time.perf_counter()
    with Client(agent_id="bench", role="bench") as client:
        for n in range(number):
            if pause:
                time.sleep(max(0.0, started + n * pause - time.perf_counter()))
            began = time.perf_counter()
            with client.trajectory(task_id=f"task-{n}", instructions="Help the customer.", model="m") as trajectory:
                trajectory.chat(messages)
                trajectory.outcome("success", verified_by="environment")
            waited_s.append(time.perf_counter() - began)
            sent[str(trajectory.trajectory_id)] = time.time()
        if not client.flush(600):
            sys.exit("the broker does not acknowledge")
    seconds = time.perf_counter() - started
    report = {"seconds": seconds, "processor_s": time.process_time() - processor, "sent": sent, "waited_s": waited_s}
    print(json.dumps(report))  # noqa: T201


if __name__ == "__main__":
    main()
