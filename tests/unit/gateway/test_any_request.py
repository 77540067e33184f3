"""Any JSON of an agent is a request or a clear error; any JSON of an engine is an answer or its failure."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from ratchet.core.errors import BadRequest, NotFound
from ratchet.core.rules.chat.links import prefix_digests
from ratchet.dialects.answers import agent_body
from ratchet.dialects.api_dialect import CHAT, ENGINE_FIELDS, TEXT, ApiDialect
from ratchet.dialects.requests import read_fields
from ratchet.dialects.streams import PassedStream
from tests.support.fake_streams import event_of

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
MEMBERS = (
    "model",
    "messages",
    "prompt",
    "tools",
    "n",
    "stream",
    "stream_options",
    "temperature",
    "max_tokens",
    "seed",
    "logprobs",
    "return_token_ids",
    "adapter_id",
)
bodies = st.dictionaries(st.sampled_from(MEMBERS), values, max_size=6)
GOOD: dict[str, Any] = {"model": "support", "messages": [{"role": "user", "content": "x"}], "prompt": "x"}


@pytest.mark.parametrize("dialect", [CHAT, TEXT])
@given(body=bodies, whole=st.booleans())
def test_every_body_is_read_or_refused(dialect: ApiDialect, body: dict[str, Any], whole: bool) -> None:
    with suppress(BadRequest, NotFound):
        request = dialect.read(read_fields(msgspec.json.encode({**GOOD, **body} if whole else body)))
        sent = msgspec.json.decode(msgspec.json.encode(ENGINE_FIELDS[dialect.name](request, "support@1-x")))
        assert sent["model"] == "support@1-x"
        assert len(prefix_digests(request.messages)) == len(request.messages) + 1


calls = st.lists(st.dictionaries(st.sampled_from(["id", "type", "function"]), values) | values, max_size=2)
messages = st.fixed_dictionaries({}, optional={"content": values, "tool_calls": calls | values, "role": values})
choices = st.fixed_dictionaries(
    {}, optional={"message": messages | values, "text": values, "logprobs": values, "finish_reason": values}
)
lists = st.lists(choices, max_size=1) | st.tuples(choices, values).map(list)
answers = st.fixed_dictionaries({"choices": lists | values}, optional={"usage": values})


@pytest.mark.parametrize("dialect", [CHAT, TEXT])
@given(answer=answers)
def test_answer_with_a_sound_envelope_can_be_shown_and_streamed(dialect: ApiDialect, answer: dict[str, Any]) -> None:
    request = dialect.read(read_fields(msgspec.json.encode(GOOD)))
    raw = msgspec.json.encode(answer)
    try:
        msgspec.json.decode(raw, type=dialect.envelope)
    except msgspec.DecodeError:
        return
    shown = msgspec.json.decode(agent_body(request, raw))
    assert len(shown["choices"]) == len(answer["choices"])
    stream = PassedStream(request, dialect.error_event, of_policy=True)
    for chunk in dialect.replay(answer):
        stream.feed(event_of(chunk).removesuffix(b"\n\n"))


@pytest.mark.parametrize(("dialect", "good"), [(CHAT, {"message": {"content": "x"}}), (TEXT, {"text": "x"})])
def test_choice_that_is_not_an_object_makes_the_answer_invalid(dialect: ApiDialect, good: dict[str, Any]) -> None:
    assert dialect.answer({"choices": [good, good]}, 1).message is not None
    with pytest.raises(TypeError):
        dialect.answer({"choices": [good, 5]}, 0)
