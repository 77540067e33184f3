"""Text completions: which prompts are one prompt, and what the engine is asked."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.errors import RatchetError
from ratchet.gateway.domain.completions import completion_upstream, read_completion
from ratchet.service.problems import http_error


@pytest.mark.parametrize(
    ("prompt", "asked", "searchable"),
    [("once", "once", True), (["once"], "once", True), ([5, 6], [5, 6], False), ([[5, 6]], [5, 6], False)],
)
def test_a_prompt_is_a_text_or_token_ids(prompt: Any, asked: Any, searchable: bool) -> None:
    request = read_completion({"model": "support", "prompt": prompt})
    assert completion_upstream(request, "support@1-x")["prompt"] == asked
    assert request.searchable is searchable


@pytest.mark.parametrize("prompt", [None, [], 7, ["one", "two"], [[1], [2]], [True], [{}]])
def test_anything_else_is_refused(prompt: Any) -> None:
    with pytest.raises(RatchetError) as error:
        read_completion({"model": "support", "prompt": prompt})
    assert (http_error(error.value).status, error.value.param) == (400, "prompt")


def test_a_text_is_a_users_message_and_token_ids_are_only_counted() -> None:
    assert read_completion({"model": "support", "prompt": "once"}).messages == [{"role": "user", "content": "once"}]
    ids = read_completion({"model": "support", "prompt": [5, 6]}).messages
    assert ids == [{"role": "user", "content": [{"type": "token_ids", "count": 2}]}]


def test_the_engine_is_asked_for_log_probabilities_and_the_agent_sees_those_that_it_asked_for() -> None:
    assert completion_upstream(read_completion({"model": "support", "prompt": "x"}), "p")["logprobs"] == 0
    asked = read_completion({"model": "support", "prompt": "x", "logprobs": 3})
    assert completion_upstream(asked, "p")["logprobs"] == 3
    assert asked.wants_logprobs
