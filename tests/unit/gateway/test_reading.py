"""Requests are read beside the event loop where they are large, and are the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from ratchet.core.errors import BadRequest
from ratchet.core.rules.chat.links import Digested, prefix_digests
from ratchet.dialects.api_dialect import CHAT
from ratchet.dialects.requests import CallRequest, Fields
from ratchet.gateway.calls import LARGE, RequestReader

TALK: list[dict[str, Any]] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


@pytest.fixture
def reader() -> Iterator[RequestReader]:
    reader = RequestReader()
    yield reader
    reader.close()


def body(messages: list[dict[str, Any]], size: int = 0) -> bytes:
    return msgspec.json.encode({"model": "support", "messages": messages, "metadata": {"run_id": "a" * size}})


@pytest.mark.parametrize("size", [0, LARGE])
async def test_a_large_request_is_read_in_a_thread_and_no_other_is(reader: RequestReader, size: int) -> None:
    threads = list[threading.Thread]()

    def read(fields: Fields) -> CallRequest:
        threads.append(threading.current_thread())
        return CHAT.read(fields)

    call, naming = await reader.read(replace(CHAT, read=read), body(TALK, size), named=False)
    assert (call.messages, naming) == (TALK, {"metadata": {"run_id": "a" * size}})
    assert (threads == [threading.main_thread()]) == (size == 0)


@pytest.mark.parametrize("named", [True, False])
async def test_messages_of_a_large_request_have_digests_if_these_recognise_it(
    reader: RequestReader, named: bool
) -> None:
    call, _ = await reader.read(CHAT, body(TALK, LARGE), named=named)
    assert isinstance(call.messages, Digested) != named
    assert prefix_digests(call.messages) == prefix_digests(TALK)
    assert prefix_digests(call.messages, b"x") == prefix_digests(TALK, b"x")


async def test_a_large_request_is_refused_like_a_small_one(reader: RequestReader) -> None:
    with pytest.raises(BadRequest, match="messages"):
        await reader.read(CHAT, body([], LARGE), named=True)
