"""One row of a snapshot: a trajectory with everything a learner needs, so that it needs no other store.

A learner recomputes log-probabilities over the full prompt of each call. Turns carry prompts as deltas to their
parent's prompt and output; here they become full prompts again, verified by the digest of a delta's prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ratchet.bus.message import encode
from ratchet.contract.snapshot import Call, Row, TrajectoryRow
from ratchet.contract.trajectory import Trajectory
from ratchet.contract.turn import Turn
from ratchet.datasets.domain.selection import MIXED_OR_PINNED, is_left_out
from ratchet.rules.chat import ChatError
from ratchet.rules.recorded import (
    ids_digest,
    in_call_order,
    is_captured,
    lacks_turns,
    offered_tools,
    recorded_chat,
    turn_refs,
)

TRANSFORMS: Mapping[str, Callable[[float], float]] = {
    "identity": lambda reward: reward,
    "negate": lambda reward: 1 - reward,
}
"""`negate` mirrors a reward within [0, 1]: the best becomes the worst."""

TURNS_NOT_STORED = "turns_not_stored"
NO_TRAINABLE_CALL = "no_trainable_call"
UNREADABLE_CHAT = "unreadable_chat"
"""Reasons why a row cannot be made."""
NO_IDS = "no_token_ids"
PARENT_MISSING = "parent_missing"
PREFIX_MISMATCH = "prefix_mismatch"
COUNT_MISMATCH = "count_mismatch"
"""Reasons why a call of a row is not trainable, beside the gateway's own."""


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """Where a row of any format comes from, as the manifest lists it."""

    trajectories: tuple[str, ...]
    source: str
    preferences: tuple[str, ...] = ()
    rater: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """A row of any format, and its part of the manifest."""

    row: Row
    origin: RowOrigin


@dataclass(frozen=True, slots=True)
class Scored:
    """The reward of a trajectory beside those of its task."""

    task_key: str
    reward: float
    """After the transform."""
    raw_reward: float
    baseline: float | None
    """On the scale of `reward`."""


def row_of(trajectory: Trajectory, turns: Sequence[Turn], scored: Scored, needs_calls: bool) -> SnapshotRow | str:
    """The row, or the reason (a token) why it cannot be made. `needs_calls`: for an algorithm that needs token ids."""
    if is_left_out(turns):
        return MIXED_OR_PINNED
    if lacks_turns(trajectory, turns):
        return TURNS_NOT_STORED
    calls = calls_of(turns, turn_refs(trajectory) if is_captured(trajectory, turns) else None)
    if needs_calls and not any(call.trainable for call in calls):
        return NO_TRAINABLE_CALL
    source = trajectory.metadata.source or "client"
    claimed = trajectory.policy.version if trajectory.policy else None
    try:
        row = TrajectoryRow(
            trajectory_id=trajectory.trajectory_id,
            task_key=scored.task_key,
            reward=scored.reward,
            raw_reward=scored.raw_reward,
            baseline=scored.baseline,
            success=trajectory.outcome.status == "success" if trajectory.outcome else None,
            policy_version=calls[0].policy_version if calls else claimed,
            source=source,
            messages=recorded_chat(trajectory, turns),
            tools=offered_tools(trajectory, turns),
            calls=calls,
        )
        encode(row)  # a chat that is nested too deeply has no JSON
    except (ChatError, RecursionError):
        return UNREADABLE_CHAT
    return SnapshotRow(row, RowOrigin((trajectory.trajectory_id,), source))


def calls_of(turns: Sequence[Turn], referenced: frozenset[str] | None = None) -> list[Call]:
    """The calls of one trajectory in order. `referenced`: the ids of the turns that its entries refer to.

    Without them, the last answered attempt at each index counts. Every turn is read all the same, since later prompts
    may build on it.
    """
    ordered = in_call_order(turns)
    prompts = full_prompts(ordered)
    if referenced is not None:
        kept = [turn for turn in ordered if turn.turn_id in referenced]
    else:
        kept = list({turn.index: turn for turn in ordered if turn.response is not None}.values())
    return [_call(turn, prompts[turn.turn_id]) for turn in kept]


def full_prompts(turns: Sequence[Turn]) -> dict[str, list[int] | str]:
    """By turn id: the token ids of the whole prompt, or the reason (a token) why they cannot be known."""
    outputs = {turn.turn_id: turn.output_token_ids for turn in turns}
    prompts: dict[str, list[int] | str] = {}
    for turn in turns:
        delta = turn.prompt_token_ids
        if delta is None:
            prompts[turn.turn_id] = NO_IDS
            continue
        if delta.prefix_length == 0:
            prompts[turn.turn_id] = delta.suffix
            continue
        before, output = prompts.get(turn.parent_turn_id or ""), outputs.get(turn.parent_turn_id or "")
        if not isinstance(before, list) or output is None:
            prompts[turn.turn_id] = PARENT_MISSING
            continue
        prefix = (before + output)[: delta.prefix_length]
        is_same = len(prefix) == delta.prefix_length and ids_digest(prefix) == delta.prefix_digest
        prompts[turn.turn_id] = prefix + delta.suffix if is_same else PREFIX_MISMATCH
    return prompts


def _call(turn: Turn, prompt: list[int] | str) -> Call:
    reason = None
    if not turn.trainable.ok:
        reason = turn.trainable.reason or "unknown"
    elif isinstance(prompt, str):
        reason = prompt
    elif not turn.output_token_ids:
        reason = NO_IDS
    elif len(turn.output_token_ids) != len(turn.behavior_logprobs or []):
        reason = COUNT_MISMATCH
    return Call(
        turn_id=turn.turn_id,
        prompt_token_ids=prompt if isinstance(prompt, list) else [],
        output_token_ids=turn.output_token_ids or [],
        behavior_logprobs=turn.behavior_logprobs or [],
        temperature=turn.sampling.temperature if turn.sampling else 1.0,
        policy_version=turn.policy.version,
        policy_digest=turn.policy.digest,
        trainable=reason is None,
        reason=reason,
    )
