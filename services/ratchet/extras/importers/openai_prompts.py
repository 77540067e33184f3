"""OpenAI's stored prompts as bundles: an object for each prompt, or for each of its versions.

Read in the shapes of both APIs: `instructions`, or leading system and developer messages of `input`
or `messages`; `variables`; `model`; `tools`; sampling values; `text.format` or `response_format`. `{{NAME}}` becomes
`{{variables.NAME}}`. What agents send, or what Ratchet keeps elsewhere, has no place in a bundle and is counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from ratchet.core.contract import JsonObject
from ratchet.core.contract.bundle import Bundle, BundleModel, Example, Instructions, SamplingValues, ToolTexts
from ratchet.core.errors import Rejected
from ratchet.core.rules.bundles import check_bundle, variables_in
from ratchet.core.rules.redaction import redact
from ratchet.dialects.foreign_values import object_of, objects_of, text_or_none
from ratchet.extras.importers.base import MalformedRecord
from ratchet.extras.importers.building import digest_of
from ratchet.extras.importers.openai_evals import Converted, message_text
from ratchet.extras.importers.reading import Record, Unreadable

_LIMITS = ("max_output_tokens", "max_completion_tokens", "max_tokens")
_SAMPLING = dict.fromkeys(_LIMITS, "max_tokens") | {
    name: name for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")
}
_READ = {"instructions", "input", "messages", "model", "tools", "text", "response_format", "reasoning", "variables"}
_ABOUT = {"id", "object", "prompt", "name", "title", "version", "status", "created_at", "updated_at", "description"}
"""What a prompt says about itself."""
_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]{0,63})\s*\}\}")
_NOT_ALNUM = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass
class Bundles(Converted):
    """Bundles by name."""

    bundles: dict[str, Bundle] = field(default_factory=dict[str, Bundle])


def bundles_of(records: Iterable[Record], upstream: str) -> Bundles:
    """The bundles of prompts, whose models are those of an upstream."""
    made = Bundles()
    for record in records:
        if isinstance(record.value, Unreadable) or not isinstance(record.value, dict):
            made.left_out["records that are no JSON objects"] += 1
            continue
        fields = cast("JsonObject", record.value)
        fields = {**fields, **object_of(fields.get("prompt"))}
        name, left_out = _name(fields), Counter[str]()
        try:
            bundle = _bundle(fields, upstream, left_out)
            check_bundle(bundle)
            redacted = redact(msgspec.json.decode(msgspec.json.encode(bundle)))
        except (ValueError, Rejected) as error:
            made.left_out[f"prompt {name}: {error}"] += 1
            continue
        if name in made.bundles:
            name = f"{name}-{digest_of(msgspec.to_builtins(bundle))[:8]}"
        made.bundles[name] = msgspec.convert(redacted.value, Bundle)
        made.left_out.update(left_out)
        made.redactions.update(redacted.counts)
    return made


def _bundle(fields: JsonObject, upstream: str, left_out: Counter[str]) -> Bundle:
    """Raises a `ValueError` or `Rejected` for what is no prompt."""
    messages = [*_listed(fields.get("instructions")), *_listed(fields.get("messages", fields.get("input")))]
    leading = next(
        (n for n, message in enumerate(messages) if message.get("role") not in ("system", "developer")), len(messages)
    )
    text = _PLACEHOLDER.sub(r"{{variables.\1}}", "\n\n".join(map(message_text, messages[:leading])))
    model = text_or_none(fields.get("model"))
    for name in fields.keys() - _READ - _ABOUT - _SAMPLING.keys():
        if fields[name] not in (None, {}, [], ""):
            left_out[f"`{name}` of prompts"] += 1
    if any(value not in (None, "", {}) for value in object_of(fields.get("variables")).values()):
        left_out["default values of variables: agents send them in ratchet_variables"] += 1
    return Bundle(
        model=BundleModel(upstream=upstream, name=model) if model else None,
        instructions=Instructions(text=text, variables=variables_in(text)) if text.strip() else None,
        tools=_tools(fields, left_out),
        examples=_examples(messages[leading:], left_out),
        defaults=_sampling(fields),
        response_format=_format(fields, left_out),
    )


def _listed(value: object) -> list[JsonObject]:
    """Messages; a text is one of the developer."""
    return [{"role": "developer", "content": value}] if isinstance(value, str) and value else objects_of(value)


def _examples(messages: list[JsonObject], left_out: Counter[str]) -> tuple[Example, ...]:
    """Messages up to the last answer; one with a variable, or with more than text, ends them."""
    plain: list[Example] = []
    for message in messages:
        if message.get("role") not in ("user", "assistant") or message.get("tool_calls"):
            break
        try:
            text = message_text(message)
        except MalformedRecord:
            break
        if not text or "{{" in text:
            break
        plain.append(Example(role=str(message["role"]), content=text))
    while plain and plain[-1].role != "assistant":
        plain.pop()
    if len(plain) < len(messages):
        left_out["messages of prompts that agents send: with variables, or without an answer"] += len(messages) - len(
            plain
        )
    return tuple(plain)


def _tools(fields: JsonObject, left_out: Counter[str]) -> dict[str, ToolTexts]:
    texts: dict[str, ToolTexts] = {}
    for tool in objects_of(fields.get("tools")):
        function = object_of(tool.get("function")) or tool
        name = text_or_none(function.get("name"))
        if tool.get("type") != "function" or name is None:
            left_out[f"tools of the type `{tool.get('type')}`"] += 1
            continue
        properties = object_of(object_of(function.get("parameters")).get("properties"))
        described = {of: text_or_none(object_of(schema).get("description")) for of, schema in properties.items()}
        parameters = {of: text for of, text in described.items() if text}
        texts[name] = ToolTexts(description=text_or_none(function.get("description")), parameters=parameters)
        left_out["tools of which the texts alone are kept: agents offer them"] += 1
    return texts


def _sampling(fields: JsonObject) -> SamplingValues | None:
    given = {_SAMPLING[name]: value for name, value in fields.items() if name in _SAMPLING and value is not None}
    effort = text_or_none(object_of(fields.get("reasoning")).get("effort"))
    given |= {"reasoning_effort": effort} if effort else {}
    try:
        return msgspec.convert(given, SamplingValues) if given else None
    except msgspec.ValidationError as error:
        raise MalformedRecord(str(error)) from error


def _format(fields: JsonObject, left_out: Counter[str]) -> dict[str, Any] | None:
    """The answer's format, as a chat completion has it; `Any`: a schema of the user's."""
    text = object_of(fields.get("text"))
    _count_others(text, "text", {"format"}, left_out)
    _count_others(object_of(fields.get("reasoning")), "reasoning", {"effort"}, left_out)
    shape = object_of(text.get("format")) or object_of(fields.get("response_format"))
    if shape.get("type") in (None, "text"):
        return None
    if shape["type"] != "json_schema" or "json_schema" in shape:
        return shape
    return {"type": "json_schema", "json_schema": {name: value for name, value in shape.items() if name != "type"}}


def _count_others(fields: Mapping[str, object], of: str, read: set[str], left_out: Counter[str]) -> None:
    for name in fields.keys() - read:
        if fields[name] is not None:
            left_out[f"`{of}.{name}` of prompts"] += 1


def _name(fields: JsonObject) -> str:
    """The name of a prompt's folder."""
    named = next((text for key in ("name", "title", "id") if (text := text_or_none(fields.get(key)))), "prompt")
    version = fields.get("version")
    return (
        "-".join(filter(None, (_NOT_ALNUM.sub("-", named).strip("-")[:80], f"v{version}" if version else "")))
        or "prompt"
    )
