"""Gives a fresh stack something to learn from: logged tickets of a fallible clerk, and a tiny base model in a folder.

    python examples/python/tickets.py [TASKS] [TRIES] [ROLE]

A real team has both already: its agents' trajectories, and a model. The tickets and the model are those of `make demo`:
0.7 million random parameters and a vocabulary for this help desk.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from ratchet import Client
from ratchet_helpdesk.base_model import Shape, write_base_model
from ratchet_helpdesk.clerk import CARELESS, play
from ratchet_helpdesk.world import draw_tasks, tool_definitions

BASE = Path(os.environ.get("RATCHET_DIR", ".ratchet"), "base-model")


def record(client: Client, tasks: int, tries: int) -> None:
    """Let the clerk play every ticket several times: the same task, well and badly done, is what there is to learn."""
    draw, tools = random.Random(1), tool_definitions()
    for number, task in enumerate(draw_tasks("train", tasks, seed=1)):
        for _ in range(tries):
            played = play(task, CARELESS, draw)
            with client.trajectory(
                task_id=f"ticket-{number}", group_key=f"ticket-{number}", model="clerk", tools=tools
            ) as trajectory:
                trajectory.chat(played.messages, tools=tools)
                trajectory.outcome("success" if played.verdict.success else "failure", verified_by="environment")


def main(tasks: int = 30, tries: int = 4, *, role: str = "support") -> None:
    """Record the tickets and write the model."""
    with Client(agent_id="clerk", role=role) as client:
        record(client, tasks, tries)
        client.flush(30)
        sys.stdout.write(f"{client.stats.published} trajectories of role {role}; their rewards follow\n")
    BASE.mkdir(exist_ok=True)
    write_base_model(BASE, seed=1, shape=Shape())
    sys.stdout.write(f"base model in {BASE}/\n")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:3]), role="".join(sys.argv[3:4]) or "support")
