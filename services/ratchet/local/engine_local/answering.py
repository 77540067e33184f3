"""The answer to a completion, whole or as server-sent events while its tokens come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import partial

import msgspec
import structlog

from ratchet.bus.message import JsonObject
from ratchet.core.chat_templates.tool_formats import Reply
from ratchet.core.errors import RatchetError
from ratchet.core.service.problems import http_error, internal_error
from ratchet.local.engine_local.domain.answers import Completion, Given, chat_answer, text_answer
from ratchet.local.engine_local.domain.chunks import CHAT_CHUNK, TEXT_CHUNK, ChatChunks, TextChunks, usage_chunk
from ratchet.local.engine_local.domain.requests import ChatCall, CompletionCall, Sampling
from ratchet.local.engine_local.domain.shown_text import ShownText
from ratchet.local.engine_local.generation import Rows
from ratchet.local.engine_local.torch_batch import Update
from ratchet.local.engine_local.transformers_text import ChatText

log = structlog.get_logger()


Chunks = ChatChunks | TextChunks
"""The chunks of one choice."""


@dataclass(frozen=True, slots=True)
class Form:
    """How one route answers one request."""

    given: Given
    whole: Callable[[Sequence[Completion], Sequence[Reply]], JsonObject]
    chunk_object: str
    """`object` of a chunk."""
    chunks: Callable[[int], Chunks]
    """Those of a choice."""
    read: Callable[[Completion], Reply]
    """The text of a completion."""
    shown: Callable[[], ShownText]
    """A choice's text while its tokens come."""


def chat_form(given: Given, text: ChatText, call: ChatCall) -> Form:
    """How a chat is answered."""
    return Form(
        given,
        partial(chat_answer, given),
        CHAT_CHUNK,
        partial(ChatChunks, given),
        lambda done: text.reply(_output_text(text, call.sampling, done), call.tools),
        lambda: text.shown(call.sampling.stop, tools=bool(call.tools)),
    )


def text_form(given: Given, text: ChatText, call: CompletionCall) -> Form:
    """How a text completion is answered."""
    return Form(
        given,
        partial(text_answer, given),
        TEXT_CHUNK,
        partial(TextChunks, given),
        lambda done: Reply(text.plain(_output_text(text, call.sampling, done))),
        lambda: text.shown(call.sampling.stop, tools=False),
    )


def _output_text(text: ChatText, sampling: Sampling, done: Completion) -> str:
    """What was generated, up to the first stop text."""
    return text.until_stop(text.text(done.token_ids, sampling.stop_token_ids), sampling.stop)


async def whole_answer(form: Form, rows: Rows) -> JsonObject:
    """The answer once all rows have ended; long texts are read on a thread. Raises the error of a row that fails."""
    done = await rows.completions()
    return await asyncio.to_thread(lambda: form.whole(done, [form.read(row) for row in done]))


async def events(form: Form, rows: Rows, held: AsyncExitStack) -> AsyncGenerator[bytes, None]:
    """The answer's events as the tokens come; an error is an event too. Whatever is `held` is let go of at the end."""
    async with held:
        try:
            async with aclosing(_chunks(form, rows)) as chunks:
                async for chunk in chunks:
                    yield _event(msgspec.json.encode(chunk))
        except RatchetError as error:
            yield _event(http_error(error).json)
        except Exception:  # the boundary: the client must see that its answer ends here
            log.exception("stream failed")
            yield _event(internal_error().json)
        yield _event(b"[DONE]")


def _event(value: bytes) -> bytes:
    return b"data: " + value + b"\n\n"


async def _chunks(form: Form, rows: Rows) -> AsyncGenerator[JsonObject, None]:
    choices = [(form.chunks(index), form.shown()) for index in range(len(rows.ends))]
    for chunks, _ in choices:
        for chunk in chunks.opening():
            yield chunk
    async with aclosing(rows.updates()) as updates:
        async for index, update in updates:
            for chunk in await _chunks_of(form, *choices[index], update):
                yield chunk
    for chunk in usage_chunk(form.given, form.chunk_object, rows.done()):
        yield chunk


async def _chunks_of(form: Form, chunks: Chunks, shown: ShownText, update: Update) -> list[JsonObject]:
    """The chunks of one token of a choice."""
    drawn, done = update.drawn, update.end
    assert drawn is not None  # noqa: S101 - rows of a stream bring every token
    if not isinstance(done, Completion):
        return chunks.token(drawn, shown.add(drawn.token))
    reply = await asyncio.to_thread(form.read, done)
    return chunks.ending(drawn, done, reply, shown.rest(reply.content or ""))
