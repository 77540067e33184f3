"""What a worker is asked, what that may cost at most, and what came back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.contract.workflows import Plan, SubTask, Worker

TEMPLATE_TOKENS = 64
"""Of a chat template around the messages. A token of what they say has at least a byte."""
LARGEST_OUTPUT = 256 * 1024
"""Bytes of a worker's output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A call of a worker."""

    task_type: str
    text: str
    """The sub-task with its inputs."""
    system: str = ""
    response_format: JsonObject | None = None
    trajectory_id: str
    user: str | None = None
    session: str | None = None
    unrecorded: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker wrote."""

    text: str
    cost_usd: float | None
    """None where it does not say: the most that the call may have cost."""
    unrecorded: bool = False
    """The gateway records nothing of this user any more."""


class CallFailed(Exception):
    """A worker did not do it; `str()` says why."""

    def __init__(self, why: str, *, again: bool, cost_usd: float | None) -> None:
        """`again`: another try may help. `cost_usd`: None where it is not known: the most that it may have cost."""
        super().__init__(why)
        self.again = again
        self.cost_usd = cost_usd


def most_usd(worker: Worker, asked: Asked) -> float:
    """The most that a call can cost."""
    if worker.url is not None:
        return worker.cost_per_token
    texts = [asked.text.encode(), asked.system.encode(), msgspec.json.encode(asked.response_format or "")]
    prompt = sum(map(len, texts)) + TEMPLATE_TOKENS
    return (prompt + worker.limits.max_output_tokens) * worker.cost_per_token


def text_of(part: SubTask, named: Mapping[str, str]) -> str:
    """A sub-task with its inputs by name."""
    blocks = [f"<{name}>\n{text}\n</{name}>" for name, text in named.items()]
    return "\n\n".join([part.instruction, *blocks])


def system_of(instruction: str, plan: Plan, index: int) -> str:
    """What a model reads beside its sub-task: what the whole is, where the sub-task's own words do not say it."""
    if instruction in plan.sub_tasks[index].instruction:
        return ""
    return (
        f"You do part {index + 1} of {len(plan.sub_tasks)} of a larger task, and only that part. Answer with its result"
        f" alone. The larger task: {instruction}"
    )


def inputs_of(plan: Plan, index: int, inputs: Mapping[str, str], outputs: Mapping[int, str]) -> dict[str, str]:
    """By name: the outputs of the sub-tasks that one depends on; without any, the workflow's inputs."""
    before = plan.sub_tasks[index].depends_on
    if not before:
        return dict(inputs)
    return {f"{plan.sub_tasks[at].task_type}_{at}": outputs[at] for at in before}
