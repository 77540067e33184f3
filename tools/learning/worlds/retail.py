"""One-action tasks of tau-trait's retail agent (MIT): requests that one call answers, with arguments that are stated.

tau-trait plays the customer with a language model and gives the agent all sixteen tools. Here the customer's
instruction is the message, and two tools that change orders are offered.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ratchet.bus.message import JsonObject
from ratchet.local.demo.plan import Reinforced, Supervised
from tools.learning.worlds.base import Engine, Outcome
from tools.learning.worlds.bfcl_answers import read_arguments
from tools.learning.worlds.public import Demonstration, NoTasks, PublicTasks
from tools.learning.worlds.single_answers import SingleAnswer, shown_call

ENGINE = Engine(max_tokens=64, seats=32, together=8, prefix_tokens=30_000, dtype="bfloat16")
IMITATION = Supervised(examples=16, steps=8, learning_rate=1e-3, batch=8)
CYCLE = Reinforced(sample_size=160, learning_rate=5e-4, epochs=1, batch=32)
OFFERED = ("cancel_pending_order", "return_delivered_order_items")
"""All four tools that change orders take 1,340 tokens."""


@dataclass(frozen=True, slots=True)
class Request:
    """A customer's instruction, and the one action that is right."""

    customer: str
    instruction: str
    action: str
    arguments: JsonObject

    @property
    def is_stated(self) -> bool:
        """Whether the instruction has every argument in it."""
        return all(isinstance(value, str) and value in self.instruction for value in self.arguments.values())

    def judge(self, content: str, calls: Sequence[tuple[str, str]]) -> Outcome:  # noqa: ARG002 - a `Judge`
        """Judge an answer: the action has to be its only call."""
        read = [(name, read_arguments(arguments)) for name, arguments in calls]
        valid = sum(name in OFFERED and arguments is not None for name, arguments in read)
        return Outcome(read == [(self.action, self.arguments)], len(calls), valid)

    def task(self, tools: list[JsonObject]) -> SingleAnswer:
        """As policies play it."""
        messages = [{"role": "user", "content": self.instruction.strip()}]
        name = sha256(f"{self.customer} {self.instruction}".encode()).hexdigest()[:12]
        return SingleAnswer(f"retail {name}", self.action, messages, tools, self.judge)

    def demonstration(self, tools: list[JsonObject]) -> Demonstration:
        """The action."""
        return shown_call(self.task(tools), self.action, self.arguments)


def retail(seed: int) -> PublicTasks:
    """The world of a seed. Raises `NoTasks`."""
    requests, tools = _package()
    training, held_out = by_customer(request for request in requests if request.is_stated)
    return PublicTasks(
        seed=seed,
        tasks=[one.task(tools) for one in training],
        exam=[one.task(tools) for one in held_out],
        shown=[one.demonstration(tools) for one in training],
        engine=ENGINE,
        imitation=IMITATION,
        cycle=CYCLE,
    )


def by_customer(requests: Iterable[Request]) -> tuple[list[Request], list[Request]]:
    """Training and held-out half: no customer is in both."""
    training: list[Request] = []
    held_out: list[Request] = []
    for request in requests:
        digest = sha256(request.customer.encode()).digest()
        (held_out if digest[0] % 2 else training).append(request)
    return training, held_out


@cache
def _package() -> tuple[tuple[Request, ...], list[JsonObject]]:
    """Its requests with one action, and the tools. Raises `NoTasks`."""
    try:
        version("tau-trait")
    except PackageNotFoundError as error:
        raise NoTasks("the requests are in the package tau-trait, which is not installed: make tasks") from error
    # The package makes a client of OpenAI when it is imported, and litellm asks the web for prices.
    os.environ.setdefault("OPENAI_API_KEY", "none")
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    # Not a dependency of Ratchet's; its import takes seconds.
    from tau_trait.envs.retail.tasks_dev import TASKS_DEV  # noqa: PLC0415  # pyright: ignore
    from tau_trait.envs.retail.tasks_test import TASKS_TEST  # noqa: PLC0415  # pyright: ignore
    from tau_trait.envs.retail.tasks_train import TASKS_TRAIN  # noqa: PLC0415  # pyright: ignore
    from tau_trait.envs.retail.tools import ALL_TOOLS  # noqa: PLC0415  # pyright: ignore

    tasks: list[Any] = [*TASKS_TRAIN, *TASKS_DEV, *TASKS_TEST]
    requests = [
        Request(one.user_id, one.instruction, one.actions[0].name, dict(one.actions[0].kwargs))
        for one in tasks
        if len(one.actions) == 1 and not one.outputs
    ]
    by_name: dict[str, JsonObject] = {one["function"]["name"]: one for one in (tool.get_info() for tool in ALL_TOOLS)}
    return tuple(requests), [by_name[name] for name in OFFERED]
