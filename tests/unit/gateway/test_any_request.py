"""Any JSON of an agent is a request or a clear error; any JSON of an engine is an answer or its failure."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from ratchet.errors import BadRequest, NotFound
from ratchet.gateway.domain.answers import agent_body
from ratchet.gateway.domain.forms import CHAT, TEXT, Form
from ratchet.gateway.domain.memory import prefix_digests

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


@pytest.mark.parametrize("form", [CHAT, TEXT])
@settings(max_examples=40)
@given(body=bodies, whole=st.booleans())
def test_every_body_is_read_or_refused(form: Form, body: dict[str, Any], whole: bool) -> None:
    with suppress(BadRequest, NotFound):
        request = form.read({**GOOD, **body} if whole else body)
        assert form.engine_body(request, "support@1-x")["model"] == "support@1-x"
        assert len(prefix_digests(request.messages)) == len(request.messages) + 1


calls = st.lists(st.dictionaries(st.sampled_from(["id", "type", "function"]), values) | values, max_size=2)
messages = st.fixed_dictionaries({}, optional={"content": values, "tool_calls": calls | values, "role": values})
choices = st.fixed_dictionaries(
    {}, optional={"message": messages | values, "text": values, "logprobs": values, "finish_reason": values}
)
lists = st.lists(choices, max_size=1) | st.tuples(choices, values).map(list)
answers = st.fixed_dictionaries({"choices": lists | values}, optional={"usage": values})


@pytest.mark.parametrize("form", [CHAT, TEXT])
@settings(max_examples=60)
@given(answer=answers)
def test_every_answer_that_is_taken_apart_can_be_shown_and_streamed(form: Form, answer: dict[str, Any]) -> None:
    request = form.read(GOOD)
    try:
        form.answer(answer)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return
    assert form.stream(request, agent_body(request, answer))[-1].endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(("form", "good"), [(CHAT, {"message": {"content": "x"}}), (TEXT, {"text": "x"})])
def test_a_choice_that_is_not_an_object_makes_the_whole_answer_invalid(form: Form, good: dict[str, Any]) -> None:
    assert form.answer({"choices": [good, good]}).message is not None
    with pytest.raises(TypeError):
        form.answer({"choices": [good, 5]})
