"""One trajectory as pages show it: the conversation, its calls, rewards and feedback, and why calls teach nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from ratchet.console.messages import LETTERS, Answered, feedback_out, messages_out, object_out, reward_out, whole_text
from ratchet.core.contract import Trajectory, Turn
from ratchet.core.contract.http.console import CallOut, ReasonOut, RunPartOut, TrajectoryOut
from ratchet.core.errors import NotFound
from ratchet.core.rules.access import RoleSet
from ratchet.core.rules.arms import MIXED, PINNED
from ratchet.core.rules.capture import Reason, advice_of
from ratchet.core.rules.chat import ChatError, assembled_turns, failed_entries, messages_with_calls
from ratchet.core.rules.recorded import in_call_order, turn_refs
from ratchet.core.stores.capture import of_trajectory
from ratchet.core.stores.trajectories import StoredTrajectories, ancestors

if TYPE_CHECKING:
    from ratchet.core.stores.trajectory_list import TrajectoryList
    from ratchet.core.stores.warehouse import Row, Warehouse

MESSAGES, CALLS, REWARDS, FEEDBACK = 500, 500, 50, 200
"""Shown of one trajectory."""
RUN = 200
"""Trajectories of a run that are shown."""
RUN_CALLS = 5_000
"""Calls of a run that are read: the conversations of one run share them."""
AT_ONCE = 2
"""Conversations that are read at the same time: each may take its size several times over in memory."""
PINNED_MEANING = "Evaluation traffic: the call asked for a version by name."
PINNED_REMEDY = "Call the role, without a version, where a trajectory is to teach."


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said in a trajectory."""

    messages: Sequence[Answered]
    ended: Trajectory | None
    """None: it is open."""
    unreadable: str | None = None
    """Why the calls make no conversation."""


class Trajectories:
    """The list of trajectories, and single ones."""

    def __init__(self, warehouse: Warehouse, listing: TrajectoryList) -> None:
        self.listing = listing
        self._warehouse = warehouse
        self._stored = StoredTrajectories(warehouse)
        self._reading = asyncio.Semaphore(AT_ONCE)

    async def get(self, trajectory_id: str, role: str | None, first_message: int, roles: RoleSet) -> TrajectoryOut:
        """The trajectory. Raises `NotFound`, and `BadRequest` for an id of several of the `roles` without one."""
        role = await self._stored.role_of(trajectory_id, role, roles)
        async with self._reading:
            return await self._whole(trajectory_id, role, first_message, roles)

    async def _whole(self, trajectory_id: str, role: str, first_message: int, roles: RoleSet) -> TrajectoryOut:
        talk = await self._conversation(role, trajectory_id)
        shown = await asyncio.to_thread(
            messages_out, talk.messages[first_message : first_message + MESSAGES], first_message
        )
        ended = talk.ended
        recorded_as = (ended.recorded_as if ended else None) or trajectory_id
        briefs, rows, rewards, feedback, run, captured = await asyncio.gather(
            self.listing.named([(role, trajectory_id)]),
            self._stored.calls(role, recorded_as, RUN_CALLS),
            self._stored.rewards(trajectory_id, role, REWARDS),
            self._stored.feedback(trajectory_id, role, FEEDBACK),
            self._stored.run({trajectory_id, *(ancestors(ended) if ended else ())}, roles, RUN),
            of_trajectory(self._warehouse, role, recorded_as),
        )
        if not briefs:
            raise NotFound(f"trajectory {trajectory_id} is not stored any more")
        own = calls_out(rows, turn_refs(ended) if ended else frozenset())
        return TrajectoryOut(
            brief=briefs[0],
            task=object_out(ended.task_context) if ended else None,
            outcome=object_out(ended.outcome) if ended else None,
            error=(ended.metadata.error or None) and ended.metadata.error[:LETTERS] if ended else None,
            messages=shown,
            messages_total=len(talk.messages),
            unreadable=talk.unreadable,
            calls=own[:CALLS],
            calls_total=len(own),
            rewards=[reward_out(reward) for reward in rewards],
            feedback=[feedback_out(opinion) for opinion in feedback],
            run=[
                RunPartOut(
                    depth=part.depth,
                    trajectory_id=part.trajectory_id,
                    role=part.role,
                    agent_id=part.agent_id,
                    calls=part.turns,
                    outcome=part.outcome,
                )
                for part in run
            ],
            reasons=msgspec.convert(captured[1] if captured else [], list[ReasonOut], from_attributes=True),
        )

    async def message(self, trajectory_id: str, role: str | None, index: int, roles: RoleSet) -> str:
        """The whole text of one message. Raises `NotFound`, and `BadRequest` as `get` does."""
        role = await self._stored.role_of(trajectory_id, role, roles)
        async with self._reading:
            talk = await self._conversation(role, trajectory_id)
        if index >= len(talk.messages):
            raise NotFound(
                f"trajectory {trajectory_id} has {len(talk.messages)} messages: there is none with index {index}"
            )
        return whole_text(talk.messages[index][0])

    async def _conversation(self, role: str, trajectory_id: str) -> Conversation:
        ended = await self._stored.newest(trajectory_id, role)
        if ended is not None:
            return await asyncio.to_thread(_reported, ended)
        turns = await self._stored.conversation(role, trajectory_id, RUN_CALLS)
        return await asyncio.to_thread(_assembled, turns)


def _reported(trajectory: Trajectory) -> Conversation:
    try:
        messages = messages_with_calls(trajectory.task_context.instructions, trajectory.turns)
    except ChatError as error:
        return Conversation([], trajectory, str(error))
    return Conversation(messages, trajectory)


def _assembled(turns: Sequence[Turn]) -> Conversation:
    """The conversation of calls without an end, as the collector would assemble it now."""
    ordered = in_call_order(turns)
    try:
        if any(turn.response for turn in ordered):
            return Conversation(messages_with_calls(*assembled_turns(ordered)), None)
        if ordered:
            last = ordered[-1]
            return Conversation(messages_with_calls(*failed_entries(last, last.error or "no answer yet")), None)
    except ChatError as error:
        return Conversation(_one_after_the_other(ordered), None, str(error))
    return Conversation([], None)


def _one_after_the_other(turns: Sequence[Turn]) -> list[Answered]:
    messages: list[Answered] = []
    for turn in turns:
        messages += [(message, None) for message in turn.messages]
        if turn.response is not None:
            messages.append((turn.response, turn.turn_id))
    return messages


def calls_out(rows: Sequence[Row], referenced: frozenset[str]) -> list[CallOut]:
    """The calls of a trajectory. `referenced`: its own ones, where the run has those of others too; empty: all."""
    arms = {row["arm"] for row in rows}
    known = {row["turn_id"] for row in rows} & referenced
    return [_call(row, arms) for row in rows if not known or row["turn_id"] in known]


def _call(row: Row, arms: set[str]) -> CallOut:
    why, remedy = None, None
    if PINNED in arms:
        why, remedy = PINNED_MEANING, PINNED_REMEDY
    elif MIXED in arms or not row["trainable"]:
        advice = advice_of(Reason.MIXED if MIXED in arms else row["bar"])
        why, remedy = advice.meaning, advice.remedy
    return CallOut(
        turn_id=row["turn_id"],
        index=row["turn_index"],
        at=row["at"],
        policy=f"{row['role']}@{row['policy_version']}",
        arm=row["arm"],
        model=row["provider_model"] or None,
        engine=row["engine"],
        latency_ms=row["latency_ms"],
        first_token_ms=row["first_token_ms"],
        prompt_tokens=row["prompt_tokens"],
        completion_tokens=row["completion_tokens"],
        cost_usd=row["cost_usd"],
        finish_reason=row["finish_reason"],
        error=row["error"],
        has_tokens=bool(row["has_tokens"]),
        applied_by=row["applied_by"] or None,
        is_changed=bool(row["is_changed"]),
        learns=why is None,
        why_not=why,
        remedy=remedy,
    )
