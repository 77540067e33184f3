"""A stream, joined, is the whole answer, whatever the tokens are: text, tool calls, ids, log-probabilities, usage."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from ratchet.core.chat_templates.tool_formats import TOOL_FORMATS
from ratchet.local.engine_local.answering import Form, chat_form, events, text_form, whole_answer
from ratchet.local.engine_local.domain.answers import Completion, Given, Stamp
from ratchet.local.engine_local.domain.requests import Sampling, read_chat, read_completion
from ratchet.local.engine_local.domain.shown_text import LONGEST_CHARACTER, WINDOW, Detokenizer
from ratchet.local.engine_local.generation import Rows
from ratchet.local.engine_local.torch_batch import Job, Update
from ratchet.local.engine_local.torch_policies import Served
from ratchet.local.engine_local.transformers_text import ChatText
from tests.support.joined_streams import events_of, joined

JOB = Job([1, 2, 3], Sampling(), 9, lambda _: None, stream=True)
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALLS = (
    '<tool_call>{"name": "f", "arguments": {"a": "é"}}</tool_call>',
    "<tool_call>\n<function=f>\n<parameter=a>\né\n</parameter>\n</function>\n</tool_call>",
    '{"name": "f", "parameters": {"a": "é"}}',
    '<|python_tag|>{"name": "f", "parameters": {"a": "é"}};',
)
FRAGMENTS = [
    *CALLS,
    "<|python_tag|>",
    "{",
    ";",
    "<|call|>",
    "<tool_call>",
    "</tool_call>",
    "<|e",
    "nd|>",
    "<|",
    "f {}",
    " ",
    "\n",
    "€",
    "😀",
    "stop",
    "st",
]
MEMBERS: list[dict[str, Any]] = [
    {},
    {"tools": TOOLS},
    {"tools": TOOLS, "stop": ["stop", "€s", "<|e", "  "], "logprobs": True},
    {"stop": ["stop"], "return_token_ids": True, "logprobs": True, "top_logprobs": 2},
    {"stop_token_ids": [42], "stream_options": {"include_usage": True}, "return_token_ids": True, "n": 3},
]


def byte_fallback() -> ChatText:
    """A tokenizer as SentencePiece makes them: spaces as a mark, unknown characters as bytes, no first space."""
    pieces = ["<unk>", "</s>", "<|call|>", "\u2581", "\u2581the", "a", "st", "op", "<tool", "_call>", "{}"]
    words = {piece: number for number, piece in enumerate([*pieces, *(f"<0x{byte:02X}>" for byte in range(256))])}
    made = Tokenizer(models.BPE(words, [], unk_token="<unk>", byte_fallback=True))
    spaces, begin = decoders.Replace("\u2581", " "), decoders.Strip(" ", 1, 0)
    made.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), begin])
    special: dict[str, Any] = {"unk_token": "<unk>", "eos_token": "</s>", "extra_special_tokens": ["<|call|>"]}
    return ChatText(PreTrainedTokenizerFast(tokenizer_object=made, **special), "call_token")


@pytest.fixture(scope="module", params=[*TOOL_FORMATS, "byte_fallback"])
def text(request: pytest.FixtureRequest, served: Served) -> ChatText:
    if request.param == "byte_fallback":
        return byte_fallback()
    return ChatText(served.text._tokenizer, request.param)


def computed(text: ChatText, ids: Sequence[int], sampling: Sampling, top: int) -> Completion:
    """What the batch makes of these tokens: it ends at an end token, a stop text, or the limit."""
    stopped = text.stop_finder(sampling.stop) if sampling.stop else None
    output: list[int] = []
    for token in ids:
        output.append(token)
        if token in text.end_ids or token in sampling.stop_token_ids or (stopped is not None and stopped(output)):
            return completion(output, "stop", top)
    return completion(output, "length", top)


def completion(ids: Sequence[int], reason: str, top: int) -> Completion:
    tops = [[(token, -0.5), (7, -1.5)] for token in ids] if top else ()
    return Completion(ids, [-0.5 - place for place in range(len(ids))], reason, 3, 1, tops)


async def read(form: Form, done: Sequence[Completion]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The whole answer, and the chunks of the stream of the same rows, which take turns."""
    whole, streamed = Rows(len(done)), Rows(len(done))
    for index, one in enumerate(done):
        whole.add(index, Update(JOB, None, one))
    for place in range(max(len(one.token_ids) for one in done)):
        for index, one in enumerate(done):
            if place < len(one.token_ids):
                end = one if place == len(one.token_ids) - 1 else None
                streamed.add(index, Update(JOB, list(one.tokens())[place], end))
    body = b"".join([event async for event in events(form, streamed, AsyncExitStack())])
    return await whole_answer(form, whole), events_of(body)


def encoded(text: ChatText, part: str) -> list[int]:
    return text._tokenizer(part, add_special_tokens=False)["input_ids"]


@st.composite
def outputs(draw: st.DrawFn, text: ChatText) -> list[int]:
    """Token ids as no model would, and as some models do."""
    one = st.integers(0, text.vocabulary - 1).map(lambda token: [token])
    known = st.sampled_from(FRAGMENTS).map(lambda part: encoded(text, part))
    control = st.sampled_from(sorted(text.control_ids - text.end_ids)).map(lambda token: [token])
    parts = draw(st.lists(st.one_of(one, known, known, control), min_size=1, max_size=12))
    call = draw(st.sampled_from(CALLS))
    calls = draw(st.sampled_from(["", " \n" + call, call + " \n" + call]))
    ids = [token for part in draw(st.sampled_from([parts, []])) for token in part]
    return [*ids, *encoded(text, calls)] or [5]


@pytest.mark.parametrize("members", MEMBERS)
@pytest.mark.parametrize("route", ["chat", "text"])
@settings(max_examples=settings().max_examples // 6)  # 50 cases: a format, a route, members
@given(data=st.data())
def test_the_joined_stream_is_the_whole_answer(
    text: ChatText, route: str, members: dict[str, Any], data: st.DataObject
) -> None:
    body = {"model": "m", "stream": True, **members}
    if route == "chat":
        chat = read_chat({**body, "messages": [{"role": "user", "content": "hi"}]})
        known = Given(Stamp("chatcmpl-1", 5, "m"), [1, 2, 3], chat.options, text.spell)
        form, sampling = chat_form(known, text, chat), chat.sampling
    else:
        plain = {name: value for name, value in body.items() if name not in {"tools", "logprobs", "top_logprobs"}}
        call = read_completion({**plain, "prompt": "hi", **({"logprobs": 2} if "logprobs" in members else {})})
        known = Given(Stamp("cmpl-1", 5, "m"), [1, 2, 3], call.options, text.spell)
        form, sampling = text_form(known, text, call), call.sampling
    drawn = [data.draw(outputs(text)) for _ in range(known.options.choices)]
    done = [computed(text, ids, sampling, known.options.top_logprobs) for ids in drawn]
    whole, chunks = asyncio.run(read(form, done))
    usage = whole.pop("usage")
    streamed = joined(chunks)
    assert streamed.pop("usage", None) == (usage if known.options.stream_usage else None)
    assert streamed == whole


def test_text_reaches_the_reader_as_soon_as_nothing_can_change_it(served: Served) -> None:
    shown = ChatText(served.text._tokenizer, "hermes").shown(["stop"], tools=True)
    parts = ("a", " ", "s", "t", "ar ", "<", "b")
    pieces = ["".join(shown.add(token) for token in encoded(served.text, part)) for part in parts]
    assert pieces == ["a", "", "", "", " star", "", " <b"]
    assert shown.rest("a star <b>") == ">"


def test_the_mark_before_calls_is_held_back_where_it_is_ordinary_text(served: Served) -> None:
    text = ChatText(served.text._tokenizer, "llama3_json")
    shown = text.shown([], tools=True)
    written = '<|python_tag|>{"name": "f", "parameters": {}}'
    assert {shown.add(token) for token in encoded(text, " " + written)} == {""}
    assert (text.reply(written, TOOLS).content, shown.rest("")) == (None, "")


def test_decoding_a_token_costs_the_same_however_long_the_answer_is() -> None:
    longest = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return bytes(ids).decode(errors="replace")

    for answer in (b"plain " * 100, b"\xff" * 600, "€".encode() * 200, b"\xe2\x82" * 300):
        tokens = Detokenizer(decode, lambda _: False)
        text = "".join(tokens.add(byte) for byte in answer)
        whole = answer.decode(errors="replace")
        assert whole.startswith(text)
        assert len(whole) - len(text) <= 1
    assert longest <= 2 * WINDOW + 2 * LONGEST_CHARACTER
