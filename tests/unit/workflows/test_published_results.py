"""What is published of workflows, and of whom nothing is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest

from ratchet.core.contract import Message
from ratchet.core.contract.erasure import AGENT, TRAJECTORY
from ratchet.core.rules.opt_outs import Ref
from ratchet.workflows.nats_results import Results
from tests.support.executions import execution

DONE = execution()


class OptedOut:
    """One who has opted out in every role."""

    def __init__(self, ref: Ref) -> None:
        self.ref = ref
        self.is_read = asyncio.Event()
        self.is_read.set()

    def covers(self, role: str, refs: Iterable[Ref]) -> bool:
        return self.ref in refs


class Published:
    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def publish(self, message: Message) -> None:
        self.messages.append(message)


@pytest.mark.parametrize(
    ("ref", "count"),
    [((AGENT, "workflows"), 0), ((TRAJECTORY, DONE.workflow_id), 0), ((AGENT, "support"), 1)],
)
async def test_no_execution_of_whom_opted_out_is_published(ref: Ref, count: int) -> None:
    bus = Published()
    await Results(cast("Any", bus), cast("Any", OptedOut(ref))).publish([DONE])
    assert len(bus.messages) == count
