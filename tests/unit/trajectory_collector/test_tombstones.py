"""What is dropped because it is erased, and what only names it: the half of another person stays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from ratchet.bus.consumer import Done, Outcome
from ratchet.bus.received import Received
from ratchet.core.contract import Feedback, Message, OptOut, Preference, encode, named_id
from ratchet.core.contract.erasure import ASKED, TRAJECTORY, USER, Erasure
from ratchet.core.rules.erasing import Erasures
from ratchet.core.service.opt_outs import KnownOptOuts
from ratchet.trajectory_collector.erasing.tombstones import Tombstones
from tests.support.messages import AT, trajectory, turn

MIA = "mia"


@dataclass
class Scene:
    """Tombstones whose tables are sets."""

    erased: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    removed: list[int] = field(default_factory=list[int])

    async def among(self, ids: Collection[str]) -> set[tuple[str, str]]:
        return {pair for pair in self.erased if pair[1] in ids}

    async def add(self, _: str, pairs: Collection[tuple[str, str]], at: datetime) -> None:
        self.erased.update(pairs)

    async def current(self, *_: object) -> str:
        return "generation"

    async def erase(self, _: object, sequences: Sequence[int], *at: object) -> None:
        if not at:  # of the stream, not of the ledger
            self.removed += sequences

    async def passed(self, asked: Sequence[Erasure], *messages: Message, opted_out: OptOut | None = None) -> list[int]:
        """The sequences, counted from 1, that a handler gets to see."""
        known = KnownOptOuts(cast("Any", None))
        known.is_read.set()
        if opted_out is not None:
            known.note(opted_out)
        here = cast("Any", self)
        tombstones = Tombstones(here, here, here, here, here, known, lambda: datetime.now(UTC))
        tombstones._known[:] = [Erasures(asked)]  # pyright: ignore[reportPrivateUsage]
        seen: list[int] = []

        async def handler(batch: Sequence[Received[Any]]) -> Sequence[Outcome]:
            seen.extend(received.sequence for received in batch)
            return [Done() for _ in batch]

        batch = [received(message, number) for number, message in enumerate(messages, 1)]
        assert await tombstones.handle("consumer", batch, handler) == [Done() for _ in batch]
        assert sorted([*seen, *self.removed]) == [each.sequence for each in batch]
        return seen


def received(message: Message, sequence: int) -> Received[Any]:
    return Received(
        message, message.TOPIC, "RL_TURNS", sequence, 1, message.event_id, AT, message.event_id, body=encode(message)
    )


def erasure(kind: str, ref: str) -> Erasure:
    at = datetime.now(UTC)
    return Erasure(
        erasure_id=named_id("erasure", kind, ref), kind=kind, ref=ref, asked_by="test", asked_at=at, phase=ASKED
    )


def opinion(on: str, **members: Any) -> Feedback:
    return Feedback(
        feedback_id=named_id("feedback", on), trajectory_id=on, kind="thumbs", at=AT, role="support", **members
    )


def pair(chosen: str, rejected: str) -> Preference:
    return Preference(
        preference_id=named_id("preference", chosen, rejected),
        prompt="which?",
        chosen="this",
        rejected="that",
        source="human",
        role="support",
        chosen_trajectory_id=chosen,
        rejected_trajectory_id=rejected,
    )


OURS, OTHERS = trajectory("ours", user_ref=MIA), trajectory("others", user_ref="ana")
OPTED_OUT = OptOut(opt_out_id=named_id("opt-out"), kind=TRAJECTORY, ref=OURS.trajectory_id, at=AT, role="support")


async def test_trajectory_on_which_an_erased_user_has_an_opinion_stays() -> None:
    scene, asked = Scene(), [erasure(USER, MIA)]
    assert await scene.passed(asked, opinion(OTHERS.trajectory_id, user_ref=MIA, value=True), OTHERS) == [2]
    assert ("support", OTHERS.trajectory_id) not in scene.erased


@pytest.mark.parametrize("is_better", [True, False])
async def test_other_half_of_a_pair_with_an_erased_trajectory_stays(is_better: bool) -> None:
    scene, asked = Scene(), [erasure(TRAJECTORY, OURS.trajectory_id)]
    halves = [OURS.trajectory_id, OTHERS.trajectory_id]
    assert await scene.passed(asked, pair(*(halves if is_better else halves[::-1])), OTHERS) == [2]
    assert ("support", OTHERS.trajectory_id) not in scene.erased


async def test_other_half_of_a_pair_with_a_trajectory_that_opted_out_stays() -> None:
    scene = Scene()
    pairs = pair(OURS.trajectory_id, OTHERS.trajectory_id)
    assert await scene.passed([], pairs, OURS, OTHERS, opted_out=OPTED_OUT) == [3]
    assert ("support", OTHERS.trajectory_id) not in scene.erased


async def test_run_of_which_a_sub_agent_alone_is_erased_stays() -> None:
    child = trajectory("child", parent_trajectory_id=OTHERS.trajectory_id)
    scene, asked = Scene(), [erasure(TRAJECTORY, child.trajectory_id)]
    assert await scene.passed(asked, child, OTHERS) == [2]
    assert ("support", OTHERS.trajectory_id) not in scene.erased


async def test_call_that_names_no_one_goes_with_one_of_its_run_in_the_same_batch() -> None:
    scene = Scene()
    assert await scene.passed([erasure(USER, MIA)], turn("run"), turn("run", user_ref=MIA), turn("other")) == [3]
