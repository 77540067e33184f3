"""From stored turns to the calls a learner sees: full prompt token ids again, rebuilt from deltas and verified."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable, Sequence

from ratchet.contract.snapshot import Call
from ratchet.contract.turn import Turn

NO_IDS = "no_token_ids"
PARENT_MISSING = "parent_missing"
PREFIX_MISMATCH = "prefix_mismatch"
COUNT_MISMATCH = "count_mismatch"


def ids_digest(ids: Sequence[int]) -> str:
    """sha256 of token ids as little-endian int32, as `PromptTokens.prefix_digest` has it."""
    words = array("i", ids)
    if sys.byteorder == "big":
        words.byteswap()
    return hashlib.sha256(words.tobytes()).hexdigest()


def in_call_order(turns: Iterable[Turn]) -> list[Turn]:
    """Turns of one trajectory in the order of their calls."""
    return sorted(turns, key=lambda turn: (turn.index, turn.attempt, turn.timestamp, turn.turn_id))


def calls_of(turns: Sequence[Turn], wanted: frozenset[str] | None = None) -> list[Call]:
    """Calls of one trajectory in order. `wanted`: ids of the turns that the trajectory tells of.

    Without it, calls that failed and calls that were tried again later are dropped. Every turn is read all the same,
    since later prompts may build on it.
    """
    ordered = in_call_order(turns)
    prompts = _prompts(ordered)
    kept = _told(ordered, wanted) if wanted is not None else _final(ordered)
    return [_call(turn, prompts[turn.turn_id]) for turn in kept]


def _told(turns: Sequence[Turn], wanted: frozenset[str]) -> list[Turn]:
    return [turn for turn in turns if turn.turn_id in wanted]


def _final(turns: Sequence[Turn]) -> list[Turn]:
    """The last answered attempt at each index."""
    last = {turn.index: turn for turn in turns if turn.response is not None}
    return list(last.values())


def _prompts(turns: Sequence[Turn]) -> dict[str, list[int] | str]:
    """By turn id: the full prompt ids, or the reason why they cannot be known."""
    outputs = {turn.turn_id: turn.output_token_ids for turn in turns}
    prompts: dict[str, list[int] | str] = {}
    for turn in turns:
        prompts[turn.turn_id] = _prompt(turn, prompts, outputs)
    return prompts


def _prompt(turn: Turn, prompts: dict[str, list[int] | str], outputs: dict[str, list[int] | None]) -> list[int] | str:
    delta = turn.prompt_token_ids
    if delta is None:
        return NO_IDS
    if delta.prefix_length == 0:
        return delta.suffix
    parent = prompts.get(turn.parent_turn_id or "")
    output = outputs.get(turn.parent_turn_id or "")
    if not isinstance(parent, list) or output is None:
        return PARENT_MISSING
    prefix = (parent + output)[: delta.prefix_length]
    if len(prefix) < delta.prefix_length or ids_digest(prefix) != delta.prefix_digest:
        return PREFIX_MISMATCH
    return prefix + delta.suffix


def _call(turn: Turn, prompt: list[int] | str) -> Call:
    reason = _reason_against(turn, prompt)
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


def _reason_against(turn: Turn, prompt: list[int] | str) -> str | None:
    if not turn.trainable.ok:
        return turn.trainable.reason or "unknown"
    if isinstance(prompt, str):
        return prompt
    if not turn.output_token_ids:
        return NO_IDS
    if len(turn.output_token_ids) != len(turn.behavior_logprobs or []):
        return COUNT_MISMATCH
    return None
