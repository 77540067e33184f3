"""From the gateway's turns, a forest by `parent_turn_id`, to the chat of their trajectory and its entries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ratchet.contract.trajectory import TrajectoryTurn
from ratchet.contract.turn import Turn
from ratchet.rules.chat.format import ChatError, Messages, normal
from ratchet.rules.chat.to_entries import Call, trajectory_turns


def chain_of_turns(turns: Sequence[Turn]) -> list[Turn]:
    """The calls that lead to the trajectory's end, first to last.

    The longest conversation in the forest is the trajectory (the later one of equal length); calls beside it are
    retries, abandoned branches, or side questions. Raises `ChatError` when a parent of the chosen chain is missing.
    """
    answered = {turn.turn_id: turn for turn in turns if turn.response is not None}
    chains: list[list[Turn]] = []  # each begins with its last call
    for leaf in answered.values():
        line: dict[str, Turn] = {}
        current: Turn | None = leaf
        while current is not None and current.turn_id not in line:
            line[current.turn_id] = current
            current = answered.get(current.parent_turn_id or "")
        chains.append(list(line.values()))
    if not chains:
        return []

    def length_then_recency(chain: Sequence[Turn]) -> tuple[int, int, int, datetime, str]:
        last = chain[0]
        length = sum(len(turn.messages) + 1 for turn in chain)
        return length, last.index, last.attempt, last.timestamp, last.turn_id

    chain = max(chains, key=length_then_recency)[::-1]
    root = chain[0]
    if root.parent_turn_id is not None:
        raise ChatError(f"turn {root.turn_id} continues turn {root.parent_turn_id}, which is not there")
    return chain


def chat_of_turns(turns: Sequence[Turn]) -> Messages:
    """The chat that a trajectory's gateway turns add up to, ending with the last answer. Raises `ChatError`."""
    chat = [message for turn in chain_of_turns(turns) for message in _exchange_of(turn)]
    for index, message in enumerate(chat):
        normal(message, index)
    return chat


def assembled_turns(turns: Sequence[Turn]) -> tuple[str, list[TrajectoryTurn]]:
    """The instructions and entries of a trajectory known only by its gateway turns. Raises `ChatError`."""
    calls: dict[int, Call] = {}
    messages: Messages = []
    chain = chain_of_turns(turns)
    for turn in chain:
        messages += _exchange_of(turn)
        calls[len(messages) - 1] = Call(turn.turn_id, turn.timestamp)
    if not chain:
        return "", []
    return trajectory_turns(messages, started_at=chain[0].timestamp, calls=calls)


def _exchange_of(turn: Turn) -> Messages:
    return [*turn.messages, {"role": "assistant", **(turn.response or {})}]
