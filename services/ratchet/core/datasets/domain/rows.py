"""One row of a snapshot: a trajectory with everything a learner needs, so that it needs no other store.

A learner recomputes log-probabilities over the full prompt of each call. Turns carry prompts as deltas to their
parent's prompt and output; here they become full prompts again, verified by the digest of a delta's prefix, and then
sequences in which each token stands once (`sequences`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from ratchet.bus.message import JsonObject
from ratchet.core.contract.reward import Feedback, Reward
from ratchet.core.contract.snapshot import CallSpan, ChatPart, Row, TrajectoryRow
from ratchet.core.contract.trajectory import Trajectory
from ratchet.core.contract.turn import Turn
from ratchet.core.datasets.domain.selection import MIXED_OR_PINNED, is_left_out
from ratchet.core.datasets.domain.sequences import Ids, LoggedCall, digest_of, ids_of, is_possible, pack
from ratchet.core.rules.chat import ChatError
from ratchet.core.rules.recorded import (
    in_call_order,
    is_captured,
    lacks_turns,
    offered_tools,
    own_turns,
    recorded_chat,
    recorded_parts,
    turn_refs,
)

TRANSFORMS: Mapping[str, Callable[[float], float]] = {
    "identity": lambda reward: reward,
    "negate": lambda reward: 1 - reward,
}
"""`negate` mirrors a reward within [0, 1]: the best becomes the worst."""

MOST_WORDS = 2000
"""Characters of one comment, reason or error."""
TURNS_NOT_STORED = "turns_not_stored"
NO_ANSWERED_CALL = "no_answered_call"
NO_TRAINABLE_CALL = "no_trainable_call"
UNREADABLE_CHAT = "unreadable_chat"
"""Reasons why a row cannot be made."""
NO_IDS = "no_token_ids"
PARENT_MISSING = "parent_missing"
PREFIX_MISMATCH = "prefix_mismatch"
COUNT_MISMATCH = "count_mismatch"
IMPOSSIBLE_IDS = "impossible_token_ids"
IMPOSSIBLE_LOGPROBS = "impossible_logprobs"
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


def tries_in(rows: Iterable[SnapshotRow]) -> Iterator[tuple[str, float]]:
    """The task and the reward of every trajectory among rows."""
    return ((row.row.task_key, row.row.reward) for row in rows if isinstance(row.row, TrajectoryRow))


@dataclass(frozen=True, slots=True)
class Scored:
    """The reward of a trajectory beside those of its task."""

    task_key: str
    reward: float
    """After the transform."""
    raw_reward: float
    baseline: float | None
    """On the scale of `reward`."""
    model_score: float | None = None
    """The score by the role's reward model."""


def row_of(trajectory: Trajectory, turns: Sequence[Turn], scored: Scored, needs_calls: bool) -> SnapshotRow | str:
    """The row, or the reason (a token) why it cannot be made. `needs_calls`: for an algorithm that needs token ids."""
    if is_left_out(turns):
        return MIXED_OR_PINNED
    if lacks_turns(trajectory, turns):
        return TURNS_NOT_STORED
    if is_captured(trajectory, turns) and not any(turn.response for turn in own_turns(trajectory, turns)):
        return NO_ANSWERED_CALL
    calls = calls_of(turns, turn_refs(trajectory) if is_captured(trajectory, turns) else None)
    if needs_calls and not any(call.facts.trainable for call in calls):
        return NO_TRAINABLE_CALL
    source = trajectory.metadata.source or "client"
    claimed = trajectory.policy.version if trajectory.policy else None
    try:
        # What a learner reads of the conversation: of chats every part, of calls the last one beside them.
        parts = [(recorded_chat(trajectory, turns), 0)] if needs_calls else recorded_parts(trajectory, turns)
        *earlier, (messages, learn_from) = parts or [(list[JsonObject](), 0)]
        compact = pack(calls)
        row = TrajectoryRow(
            trajectory_id=trajectory.trajectory_id,
            task_key=scored.task_key,
            reward=scored.reward,
            raw_reward=scored.raw_reward,
            baseline=scored.baseline,
            model_score=scored.model_score,
            success=trajectory.outcome.status == "success" if trajectory.outcome else None,
            policy_version=calls[0].facts.policy_version if calls else claimed,
            source=source,
            messages=messages,
            learn_from=learn_from,
            earlier=[ChatPart(messages=part, learn_from=begin) for part, begin in earlier],
            tools=offered_tools(trajectory, turns),
            calls=[],
            token_ids=compact.token_ids.tolist(),
            logprobs=compact.logprobs.tolist(),
            sequences=compact.sequences,
            spans=compact.spans,
        )
        msgspec.json.encode([row.messages, row.earlier, row.tools])  # a chat that is nested too deeply has no JSON
    except (ChatError, RecursionError):
        return UNREADABLE_CHAT
    return SnapshotRow(row, RowOrigin((trajectory.trajectory_id,), source))


def with_words(row: SnapshotRow | str, words: Mapping[str, Sequence[str]]) -> SnapshotRow | str:
    """A trajectory's row with what was said of it. `words`: by trajectory."""
    if isinstance(row, str) or not isinstance(row.row, TrajectoryRow):
        return row
    spoken = list(words.get(row.row.trajectory_id, ()))
    return replace(row, row=msgspec.structs.replace(row.row, words=spoken))


def words_of(feedback: Iterable[Feedback], reward: Reward | None, turns: Iterable[Turn]) -> list[str]:
    """What was said of a trajectory: by users and raters, by what judged it, and by engines and tools that failed."""
    comments = [
        f"{opinion.kind}: {opinion.value}"
        for opinion in feedback
        if isinstance(opinion.value, str) and opinion.value.strip()
    ]
    parts = reward.reward_components.items() if reward else ()
    reasons = [f"{name} ({part.score:g}): {part.reasoning}" for name, part in parts if part.reasoning]
    errors = [f"error: {turn.error}" for turn in turns if turn.error]
    return [words[:MOST_WORDS] for words in dict.fromkeys([*comments, *reasons, *errors])]


def calls_of(turns: Sequence[Turn], referenced: frozenset[str] | None = None) -> list[LoggedCall]:
    """The calls of one trajectory in order. `referenced`: the ids of the turns that its entries refer to.

    Without them, the last answered attempt at each index counts. Every turn is read all the same, since later prompts
    may build on it.
    """
    ordered = in_call_order(turns)
    outputs = {turn.turn_id: _ids(turn.output_token_ids) for turn in ordered}
    prompts = full_prompts(ordered, outputs)
    if referenced is not None:
        kept = [turn for turn in ordered if turn.turn_id in referenced]
    else:
        kept = list({turn.index: turn for turn in ordered if turn.response is not None}.values())
    return [_call(turn, prompts[turn.turn_id], outputs[turn.turn_id]) for turn in kept]


def full_prompts(turns: Sequence[Turn], outputs: Mapping[str, Ids | str]) -> dict[str, Ids | str]:
    """By turn id: the token ids of the whole prompt, or the reason (a token) why they cannot be known."""
    prompts: dict[str, Ids | str] = {}
    for turn in turns:
        delta = turn.prompt_token_ids
        suffix = _ids(delta.suffix if delta is not None else None)
        if delta is None or isinstance(suffix, str) or delta.prefix_length == 0:
            prompts[turn.turn_id] = suffix
            continue
        before, output = (ids.get(turn.parent_turn_id or "") for ids in (prompts, outputs))
        if before is None or isinstance(before, str) or output is None or isinstance(output, str):
            prompts[turn.turn_id] = PARENT_MISSING
            continue
        prefix = np.concatenate((before, output))[: delta.prefix_length]
        is_same = len(prefix) == delta.prefix_length and digest_of(prefix) == delta.prefix_digest
        prompts[turn.turn_id] = np.concatenate((prefix, suffix)) if is_same else PREFIX_MISMATCH
    return prompts


def _ids(values: Sequence[int] | None) -> Ids | str:
    """Token ids, or the reason (a token) why there are none."""
    if values is None:
        return NO_IDS
    try:
        return ids_of(values)
    except OverflowError:
        return IMPOSSIBLE_IDS


def _call(turn: Turn, prompt: Ids | str, output: Ids | str) -> LoggedCall:
    logprobs = np.asarray(turn.behavior_logprobs or [], dtype=np.float32)
    reason = None
    if not turn.trainable.ok:
        reason = turn.trainable.reason or "unknown"
    elif isinstance(prompt, str) or isinstance(output, str):
        reason = prompt if isinstance(prompt, str) else output
    elif not len(output):
        reason = NO_IDS
    elif len(output) != len(logprobs):
        reason = COUNT_MISMATCH
    elif not is_possible(logprobs):
        reason = IMPOSSIBLE_LOGPROBS
    facts = CallSpan(
        turn_id=turn.turn_id,
        temperature=turn.sampling.temperature if turn.sampling else 1.0,
        policy_version=turn.policy.version,
        policy_digest=turn.policy.digest,
        constraint=turn.constraint,
        trainable=reason is None,
        reason=str(reason) if reason is not None else None,
    )
    return LoggedCall(_known(prompt), _known(output), logprobs, facts)


def _known(ids: Ids | str) -> Ids:
    return ids_of([]) if isinstance(ids, str) else ids
