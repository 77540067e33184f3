"""Drills: chats without any house rule, which teach a random model to call tools and to copy what it reads.

Half of them do what the customer asked for, half use any tool at all: nothing is learnt about when to use which.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict

from ratchet.demo.clerk import does
from ratchet.demo.world import TOOLS, TRAIN, Act, ChatMessage, Task, draw_tasks


def draw_drills(count: int, seed: int) -> list[tuple[Task, list[ChatMessage]]]:
    """`count` chats: an opening that names the order, a look-up, one tool used with facts from the chat."""
    draw = random.Random(f"drills {seed}")
    return [(task, _chat(task, draw)) for task in draw_tasks(TRAIN, count, seed)]


def _chat(task: Task, draw: random.Random) -> list[ChatMessage]:
    number, facts = task.order.number, asdict(task.order.facts)
    opening = task.opening if task.names_order else task.opening.replace("order", f"order #{number}", 1)
    tool = draw.choice(tuple(TOOLS)) if draw.random() < 0.5 else task.wish
    known = {**facts, "order": number, "reason": draw.choice(("stage", "late"))}
    return [
        {"role": "user", "content": opening},
        does(Act.of("find_order", order=number)),
        {"role": "tool", "tool_call_id": "call_0", "content": json.dumps(facts, separators=(",", ":"))},
        does(Act.of(tool, **{name: known[name] for name in TOOLS[tool]})),
    ]
