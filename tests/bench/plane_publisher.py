"""Publishes trajectories by the client of whichever `ratchet` it is run with; prints its figures as JSON.

Run by `bench_plane`: `python plane_publisher.py NUMBER KB TURNS [PER_SECOND]`. It knows only what all versions share.
"""

from __future__ import annotations

import json
import random
import sys
import time

from ratchet import Client

DIFFERENT = 500
"""Conversations: more than a block of ClickHouse compresses together, so that it stores no text twice for nothing."""
SYLLABLES = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]


def vocabulary(draw: random.Random) -> list[str]:
    """Words as frequent as those of a language: the n-th has a share of 1/n."""
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))) for _ in range(3000)]
    return draw.choices(words, [1 / (place + 1) for place in range(len(words))], k=50_000)


def conversations(size: int, turns: int) -> list[list[dict[str, str]]]:
    """Each of about `size` characters."""
    draw = random.Random(1)
    text, each = " ".join(vocabulary(draw)), size // (2 * turns)
    roles = ("user", "assistant")
    return [
        [
            {"role": roles[n % 2], "content": f"{n}: {text[place : place + each]}"}
            for n, place in enumerate(draw.choices(range(len(text) - each), k=2 * turns))
        ]
        for _ in range(DIFFERENT)
    ]


def main() -> None:
    """Publish at full pace, or evenly; then wait until the broker has acknowledged all."""
    number, size, turns = int(sys.argv[1]), int(float(sys.argv[2]) * 1000), int(sys.argv[3])
    pause = 1 / float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
    messages = conversations(size, turns)
    sent: dict[str, float] = {}
    waited_s: list[float] = []
    processor, started = time.process_time(), time.perf_counter()
    with Client(agent_id="bench", role="bench") as client:
        for n in range(number):
            if pause:
                time.sleep(max(0.0, started + n * pause - time.perf_counter()))
            began = time.perf_counter()
            with client.trajectory(task_id=f"task-{n}", instructions="Help the customer.", model="m") as trajectory:
                trajectory.chat(messages[n % DIFFERENT])
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
