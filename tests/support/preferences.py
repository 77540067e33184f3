"""Facts for tests of preferences: tries of the same tasks that end well and badly, and judgements of raters."""

from __future__ import annotations

from ratchet.bus.message import named_id
from ratchet.core.contract import Message, Preference
from ratchet.core.contract.trajectory import Action, Observation, TaskContext, TrajectoryTurn, TurnResult
from tests.support.coordinator import ROLE
from tests.support.training import after, changed, reward, trajectory

TASKS = 6


def tried(name: str, answer: str, total: float, *, task: str, number: int, role: str = ROLE) -> list[Message]:
    """A try as a client reports it, and its reward."""
    entry = TrajectoryTurn(
        turn_id=1,
        timestamp=after(number),
        observation=Observation(type="user_message", content=f"Where is {task}?"),
        action=Action(type="response", raw_response=answer),
        result=TurnResult(success=True),
    )
    ended = trajectory(
        named_id(role, name),
        role=role,
        success=total > 0.5,
        at=after(number),
        task_context=TaskContext(task_id=task, instructions="Help.", group_key=f"group-{task}", domain="retail"),
    )
    ended = changed(ended, turns=[entry])
    return [ended, reward(ended, total, at=after(number))]


def tries(role: str = ROLE) -> list[Message]:
    """Of each task a success and a failure, and of one task two successes that differ in nothing that counts."""
    facts: list[Message] = []
    for number in range(TASKS):
        facts += tried(f"good {number}", f"It is at {number}.", 0.9, task=f"task {number}", number=number, role=role)
        facts += tried(f"bad {number}", "I do not know.", 0.1, task=f"task {number}", number=number, role=role)
    facts += tried("again", "It is in the annex.", 0.9, task="task 0", number=99, role=role)
    return facts


def preferred(name: object, source: str = "human", rater: str | None = None) -> Preference:
    """One answer about a parcel preferred over another."""
    return Preference(
        preference_id=named_id("preference", name),
        prompt=f"Where is parcel {name}?",
        chosen="On its way.",
        rejected="No idea.",
        source=source,
        role=ROLE,
        rater=rater,
    )
