"""`/v1/completions`: one prompt, as text or as token ids; in a turn it is a user message that the answer follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ratchet.contract import JsonObject
from ratchet.errors import BadRequest
from ratchet.gateway.domain.calls import Body, CallRequest, engine_body, first_choice, read_call
from ratchet.gateway.domain.capture import MODES, Answer, usage_of


def read_completion(body: Body) -> CallRequest:
    """Check what the gateway relies on; everything else is the engine's business. Raises `BadRequest`."""
    prompt = _prompt(body.get("prompt"))
    asked = body.get("logprobs")
    if asked is not None and (isinstance(asked, bool) or not isinstance(asked, int)):
        raise BadRequest("logprobs must be an integer", param="logprobs")
    return read_call(
        {**body, "prompt": prompt},
        [{"role": "user", "content": _content(prompt)}],
        wants_logprobs=asked is not None,
        searchable=isinstance(prompt, str),
    )


def completion_upstream(request: CallRequest, policy: str) -> Body:
    """What the engine is asked: with the log-probability of every token (0: of no others beside it)."""
    body = engine_body(request, policy)
    return body if body.get("logprobs") is not None else {**body, "logprobs": 0}


def completion_answer(body: Mapping[str, Any]) -> Answer:
    """Take an engine's completion apart. `Any`: it is JSON from another process, read member by member.

    Raises `KeyError`, `IndexError`, `TypeError`, `ValueError` or `AttributeError` for what is no completion.
    """
    choice = first_choice(body)
    if not isinstance(choice["text"], str):
        raise TypeError("a text that is none")
    return Answer(
        message={"role": "assistant", "content": choice["text"]},
        prompt_ids=choice.get("prompt_token_ids") or body.get("prompt_token_ids"),
        output_ids=choice.get("token_ids"),
        logprobs=(choice.get("logprobs") or {}).get("token_logprobs"),
        logprob_mode=MODES.get(body.get("logprobs_mode")),
        usage=usage_of(body),
        finish_reason=choice.get("finish_reason"),
    )


def _prompt(given: object) -> str | list[int]:
    """One prompt; a list that holds just one is that one. Raises `BadRequest`."""
    if isinstance(given, str):
        return given
    if isinstance(given, list) and given:
        parts = cast("list[object]", given)
        if all(isinstance(part, int) and not isinstance(part, bool) for part in parts):
            return cast("list[int]", parts)
        if len(parts) == 1 and isinstance(parts[0], str | list):
            return _prompt(parts[0])
        if len(parts) > 1 and all(isinstance(part, str | list) for part in parts):
            raise BadRequest("one prompt per call: every answer belongs to one trajectory", param="prompt")
    raise BadRequest("prompt must be a text or a list of token ids", param="prompt")


def _content(prompt: str | list[int]) -> str | list[JsonObject]:
    return prompt if isinstance(prompt, str) else [{"type": "token_ids", "count": len(prompt)}]
