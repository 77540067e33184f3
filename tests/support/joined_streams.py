"""Streams of completions as tests read them: their events, and all chunks joined to the whole answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec


def events_of(body: bytes | str) -> list[dict[str, Any]]:
    """The values of a stream's events; comments are left out, and `[DONE]` must be the last event."""
    text = body if isinstance(body, str) else body.decode()
    lines = [event for event in text.split("\n\n") if event and not event.startswith(":")]
    assert lines[-1] == "data: [DONE]", lines[-1:]
    return [msgspec.json.decode(line.removeprefix("data: ")) for line in lines[:-1]]


def joined(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The whole answer that these chunks make. Every chunk but the one with the usage has one choice."""
    first = chunks[0]
    kind = "chat.completion" if first["object"] == "chat.completion.chunk" else first["object"]
    whole: dict[str, Any] = {name: first[name] for name in ("id", "created", "model")} | {"object": kind}
    for name in ("prompt_token_ids", "logprobs_mode", "usage"):
        for chunk in chunks:
            if chunk.get(name) is not None:
                whole[name] = chunk[name]
    assert {(one["id"], one["created"], one["model"], one["object"]) for one in chunks} == {
        (first["id"], first["created"], first["model"], first["object"])
    }
    parts: dict[int, list[Mapping[str, Any]]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            parts.setdefault(choice["index"], []).append(choice)
    whole["choices"] = [_choice(index, parts[index]) for index in sorted(parts)]
    return whole


def _choice(index: int, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "finish_reason": parts[-1]["finish_reason"]}
    assert all(part["finish_reason"] is None for part in parts[:-1])
    if "delta" in parts[0]:
        choice["message"] = _message([part["delta"] for part in parts])
    else:
        choice["text"] = "".join(part["text"] for part in parts)
    given = [part["logprobs"] for part in parts if part.get("logprobs") is not None]
    choice["logprobs"] = None if not given else {name: _concatenated(one[name] for one in given) for name in given[0]}
    for name in ("token_ids", "prompt_token_ids"):
        lists = [part[name] for part in parts if part.get(name) is not None]
        if lists:
            choice[name] = _concatenated(lists)
    return choice


def _concatenated(lists: Iterable[Sequence[Any] | None]) -> list[Any] | None:
    known = [one for one in lists if one is not None]
    return [value for one in known for value in one] if known else None


def _message(deltas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        for name, value in delta.items():
            if name == "role":
                message[name] = value
            elif name != "tool_calls":
                message[name] = (message.get(name) or "") + (value or "")
        for piece in delta.get("tool_calls") or ():
            _add_call(calls, piece)
    message["content"] = message.get("content") or (None if calls else "")
    return message | ({"tool_calls": [calls[index] for index in sorted(calls)]} if calls else {})


def _add_call(calls: dict[int, dict[str, Any]], piece: Mapping[str, Any]) -> None:
    """The first piece of a call has its id, type and name; later ones have more of its arguments."""
    call = calls.setdefault(piece["index"], {})
    call |= {name: piece[name] for name in ("id", "type") if piece.get(name) is not None}
    function = call.setdefault("function", {"arguments": ""})
    given = piece["function"]
    function |= {"name": given["name"]} if given.get("name") is not None else {}
    function["arguments"] += given.get("arguments") or ""
