"""What an engine got of a call beside what the agent sent, part by part, where the policy's bundle changed it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.console.messages import NAME, whole_text
from ratchet.core.contract import Turn
from ratchet.core.contract.http.console import AppliedOut, AppliedPartOut
from ratchet.core.contract.turn import Applied
from ratchet.core.errors import NotFound
from ratchet.core.rules.chat import ChatError, chat_of_turns
from ratchet.core.rules.recorded import applied_to
from ratchet.dialects.bundles import leading_of

LETTERS = 400_000
"""Of a text: more than a bundle may have."""
TOOLS = 200


def applied_out(turn: Turn, run: Sequence[Turn], _: bool = False) -> AppliedOut:
    """What the policy's bundle made of a call's request; `run`: all calls that were recorded with it.

    Raises `NotFound` where it changed nothing, and where the call that says what is not there.
    """
    if turn.applied is None:
        raise NotFound(f"the engine got call {turn.turn_id} as the agent sent it")
    applied = applied_to(run, turn.turn_id)
    if applied is None:
        raise NotFound(f"what was changed of call {turn.turn_id} stands in an earlier call, which cannot be read here")
    parts = [*_messages(turn, run, applied), *_tools(turn, run, applied), *_parameters(turn, applied)]
    is_cut = any(len(text) > LETTERS for part in parts for text in (part.sent, part.got) if text is not None)
    return AppliedOut(
        turn_id=turn.turn_id,
        role=turn.role,
        version=turn.policy.version,
        parts=[
            AppliedPartOut(
                name=part.name[:NAME], sent=part.sent and part.sent[:LETTERS], got=part.got and part.got[:LETTERS]
            )
            for part in parts
        ],
        is_cut=is_cut,
    )


def _messages(turn: Turn, run: Sequence[Turn], applied: Applied) -> Iterator[AppliedPartOut]:
    """The instructions, and what else stands before the conversation."""
    sent, got = _beginning(turn, run, applied.replaced or 0), applied.head or []
    first, second = leading_of(sent), leading_of(got)
    if sent[:first] or got[:second]:
        yield AppliedPartOut(name="instructions", sent=_texts(sent[:first]), got=_texts(got[:second]))
    if sent[first:] or got[second:]:
        yield AppliedPartOut(name="examples", sent=_dialogue(sent[first:]), got=_dialogue(got[second:]))


def _beginning(turn: Turn, run: Sequence[Turn], count: int) -> Sequence[JsonObject]:
    """The first messages of the agent's prompt."""
    # A call that failed has a prompt too.
    called = msgspec.structs.replace(turn, response=turn.response or {"role": "assistant", "content": ""})
    try:
        return chat_of_turns([called if each is turn else each for each in run], turn.turn_id)[:count]
    except ChatError as error:
        raise NotFound(f"the prompt of call {turn.turn_id} cannot be read: {error}") from error


def _texts(messages: Sequence[JsonObject]) -> str | None:
    return "\n\n".join(map(whole_text, messages)) if messages else None


def _dialogue(messages: Sequence[JsonObject]) -> str | None:
    return "\n".join(f"{message.get('role')}: {whole_text(message)}" for message in messages) if messages else None


def _tools(turn: Turn, run: Sequence[Turn], applied: Applied) -> Iterator[AppliedPartOut]:
    """The tools that differ."""
    if applied.tools is None:
        return
    offered = next((each.tools for each in run if each.tools and each.tools_digest == turn.tools_digest), [])
    sent, got = _by_name(offered), _by_name(applied.tools)
    names = [name for name in {**sent, **got} if sent.get(name) != got.get(name)]
    for name in names[:TOOLS]:
        yield AppliedPartOut(name=f"tool {name}", sent=sent.get(name), got=got.get(name))


def _by_name(tools: Iterable[JsonObject]) -> Mapping[str, str]:
    named: dict[str, str] = {}
    for tool in tools:
        function = tool.get("function")
        named[str((cast("JsonObject", function) if isinstance(function, dict) else tool).get("name"))] = _pretty(tool)
    return named


def _parameters(turn: Turn, applied: Applied) -> Iterator[AppliedPartOut]:
    sent, got = turn.parameters or {}, applied.parameters or {}
    for name in got:
        before, after = (None if values.get(name) is None else _pretty(values[name]) for values in (sent, got))
        yield AppliedPartOut(name=name.replace("_", " "), sent=before, got=after)


def _pretty(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2).decode()
