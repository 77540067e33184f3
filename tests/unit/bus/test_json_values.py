"""A body of many small values is refused before it is decoded; the longest conversations pass."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from ratchet.bus.json_values import count_values
from ratchet.bus.schemas import parse
from ratchet.core.errors import BadRequest, InvalidMessage

BODY = 30 * 1024 * 1024


def filled(before: bytes, value: bytes, after: bytes) -> bytes:
    """A body of 30 MiB."""
    return before + value * (BODY // len(value)) + after


HOSTILE = {
    "numbers": filled(b'{"messages":[', b"1,", b"1]}"),
    "objects": filled(b'{"messages":[', b"{},", b"{}]}"),
    "parts": filled(b'{"messages":[{"role":"user","content":[', b"{},", b"{}]}]}"),
    "members": filled(b"{", b'"m":1,', b'"m":1}'),
    "texts": filled(b"[", b'"",', b'""]'),
    "colons with spaces": filled(b"{", b'"m"\n :1,', b'"m":1}'),
    "nested": filled(b"", b"[", b""),
    "behind escapes": filled(b'["', rb"\\", b'"' + b",[]" * 300_000 + b"]"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_body_of_many_small_values_is_refused_in_little_time(kind: str) -> None:
    began = time.process_time()
    with pytest.raises(BadRequest, match="too many values"):
        count_values(HOSTILE[kind])
    assert time.process_time() - began < 1.5


def messages(count: int, content: Any = "x") -> bytes:
    return msgspec.json.encode({"messages": [{"role": "user", "content": content}] * count})


HONEST = {
    "a hundred thousand messages": messages(100_000),
    "sixty thousand messages in parts": messages(60_000, [{"type": "text", "text": "x"}]),
    "a prompt of a million token ids": msgspec.json.encode({"prompt": [*range(1_000_000)]}),
    "a table as text": messages(1, "1,2,3\n" * 1_000_000),
    "JSON as text": messages(1, '{"a": [1, "\\\\", {"b": "c"}]},' * 500_000),
    "JSON as text, spaced": b'{"messages" : [{"role": "user", "content" : "%s"}]}' % (rb"{\"a\":[1]}," * 1_000_000),
}


@pytest.mark.parametrize("kind", HONEST)
def test_body_of_a_long_conversation_passes(kind: str) -> None:
    assert count_values(HONEST[kind]) < 2_000_000


def test_body_that_is_short_is_not_counted() -> None:
    assert count_values(b"[" * 250_000) == 0


def test_body_is_taken_for_about_as_many_values_as_it_holds() -> None:
    assert count_values(messages(100_000)) == pytest.approx(300_000, rel=0.01)


def test_message_of_too_many_values_is_refused_before_it_is_decoded() -> None:
    began = time.process_time()
    with pytest.raises(InvalidMessage, match="too many values"):
        parse(HOSTILE["objects"])
    assert time.process_time() - began < 1.5
