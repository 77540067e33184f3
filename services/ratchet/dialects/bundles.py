"""A bundle applied to requests: instructions, examples, tools' texts, sampling, the answer's format.

`Applier` is made once for each bundle. It changes the members of a request in the agent's own API, so that a server
which speaks that API still gets it untranslated; members that a bundle does not name stay as the agent wrote them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from ratchet.core.contract.bundle import APPEND, PREPEND, REPLACE, Bundle, SamplingValues
from ratchet.core.rules.bundles import (
    BLANK_LINE,
    METADATA,
    SENT,
    VARIABLES,
    Template,
    placed,
    template_of,
    variables_of,
)
from ratchet.core.rules.chat import text_of
from ratchet.dialects.api_dialect import CHAT, TEXT, ApiDialect
from ratchet.dialects.bundle_tools import (
    CHAT_TOOLS,
    MESSAGES_TOOLS,
    RAWS,
    RESPONSES_TOOLS,
    ToolShape,
    describe,
    raw_of,
    spliced,
)
from ratchet.dialects.messages.dialect import MESSAGES
from ratchet.dialects.requests import Body, CallRequest, Fields, read_call, value_of
from ratchet.dialects.responses.dialect import RESPONSES, asked_of

_INSTRUCTING = ("system", "developer")
"""Roles of messages whose first ones are an agent's instructions."""
_CHAT_NAMES = {name: name for name in SamplingValues.__struct_fields__} | {"max_tokens": "max_completion_tokens"}
_RESPONSES_NAMES = _CHAT_NAMES | {"max_tokens": "max_output_tokens"}
_MESSAGES_NAMES = {name: name for name in ("temperature", "top_p", "top_k", "max_tokens", "seed")}


@dataclass(frozen=True, slots=True)
class _Api:
    """Where an API has what bundles change."""

    instruct: Callable[[Applier, Fields, Mapping[str, object]], None] | None
    """Writes instructions and examples into the members. None: the API has none, or is a chat, which `Applier` writes
    without reading its messages anew."""
    sampling: Mapping[str, str]
    """A sampling value -> its member; what the API does not know is not there."""
    aliases: Mapping[str, tuple[str, ...]]
    """Other members of the API for the same value."""
    tools: ToolShape
    """How it has tools."""
    respond: Callable[[Fields, Body], None]
    """Writes the answer's format into the members."""


def carried(dialect: ApiDialect, request: CallRequest, changed: CallRequest) -> CallRequest:
    """A request that was changed and read again, with what the gateway knows of the agent's own beside its members."""
    if dialect is RESPONSES:
        # The answer repeats what the agent asked for; a history that is not known stays an obstacle.
        asked, sent = asked_of(changed), asked_of(request)
        kept = dataclasses.replace(asked, body=sent.body, obstacle=sent.obstacle or asked.obstacle)
        changed = msgspec.structs.replace(changed, as_chat=kept)
    return msgspec.structs.replace(
        changed,
        headers=request.headers,
        query=request.query,
        answer_id=request.answer_id,
        at=request.at,
        trajectory_id=request.trajectory_id,
    )


class Applier:
    """A bundle, ready to be applied."""

    def __init__(self, bundle: Bundle) -> None:
        """Raises `Rejected` for instructions that `template_of` does."""
        self.bundle = bundle
        self._template = template_of(bundle.instructions) if bundle.instructions else None
        self._mode = bundle.instructions.mode if bundle.instructions else APPEND
        self._examples = [msgspec.to_builtins(example) for example in bundle.examples]

    def apply(
        self,
        dialect: ApiDialect,
        request: CallRequest,
        read: Callable[[Fields], CallRequest] | None = None,
        *,
        limit: str | None = None,
    ) -> CallRequest:
        """The request as the engine gets it; `read`: how it was read, where that is not the dialect's way. `limit`: the
        member of a chat that has the most tokens of an answer, where the server does not know the newer one.

        Raises `BadRequest` where it lacks a variable, or cannot be read.
        """
        api, bundle = _APIS[dialect.name], self.bundle
        fields = dict(request.fields)
        messages = request.messages
        if self._template is not None or self._examples:
            if dialect is CHAT:
                messages = self._into_chat(fields, messages, _variables(request))
            elif api.instruct is not None:
                api.instruct(self, fields, _variables(request))
        if bundle.tools:
            describe(fields, bundle.tools, api.tools)
        _sample(fields, bundle, api, limit)
        if bundle.response_format is not None:
            api.respond(fields, bundle.response_format)
        changed = _chat(request, fields, messages) if dialect is CHAT else (read or dialect.read)(fields)
        return carried(dialect, request, changed)

    def instructions(self, sent: str, given: Mapping[str, object]) -> str:
        """The system prompt for an agent's instructions and its metadata. Raises `MissingVariable`."""
        template: Template | None = self._template
        if template is None:
            return sent
        return placed(self._mode, sent, template.expanded(sent, given))

    def place_beside(self) -> int | None:
        """0 where the text stands before the agent's instructions, 1 after them; None where it repeats or replaces."""
        if self._template is None or SENT in self._template.names:
            return None
        return {PREPEND: 0, APPEND: 1}.get(self._mode)

    @property
    def holds_sent(self) -> bool:
        """Whether the agent's own instructions are part of the text."""
        return self._template is not None and (self._mode != REPLACE or SENT in self._template.names)

    def head(self, leading: Sequence[Body], given: Mapping[str, object]) -> list[Body]:
        """The first messages of a chat: for `leading`, the agent's own instructions, and the examples."""
        sent = BLANK_LINE.join(filter(None, (text_of(message.get("content")) for message in leading)))
        if self._template is None:
            return [*leading, *self._examples]
        role = leading[0]["role"] if leading else "system"
        text = self.instructions(sent, given)
        return [*([{"role": role, "content": text}] if text else []), *self._examples]

    def _into_chat(self, fields: Fields, messages: list[Body], given: Mapping[str, object]) -> list[Body]:
        """Writes instructions and examples into the members of a chat; returns its messages then."""
        count = leading_of(messages)
        head = self.head(messages[:count], given)
        if not head and count == len(messages):  # no API takes a chat without any message
            return messages
        fields["messages"] = spliced(head, RAWS.decode(fields["messages"])[count:])
        return [*head, *messages[count:]]

    @property
    def without_texts(self) -> Applier:
        """What is left where the agent has composed its prompt by the bundle: who answers, and the sampling."""
        bundle = self.bundle
        return Applier(Bundle(model=bundle.model, defaults=bundle.defaults, overrides=bundle.overrides))

    @property
    def examples(self) -> Sequence[Body]:
        """Messages after the instructions."""
        return self._examples


def leading_of(messages: Sequence[Body]) -> int:
    """How many of the first messages are instructions."""
    return next((n for n, message in enumerate(messages) if message.get("role") not in _INSTRUCTING), len(messages))


def _chat(request: CallRequest, fields: Fields, messages: list[Body]) -> CallRequest:
    """The chat with these messages, which are not decoded again."""
    return read_call(fields, messages, wants_logprobs=request.wants_logprobs, searchable=request.searchable)


def _variables(request: CallRequest) -> Mapping[str, object]:
    return variables_of({name: value_of(request.fields, name) for name in (METADATA, VARIABLES)})


def _into_responses(applier: Applier, fields: Fields, given: Mapping[str, object]) -> None:
    """A later request of a stored response gets the instructions anew, as this API has it, and no examples again.

    Instructions that stand in the input stay part of it, and so of the conversation that a provider stores.
    """
    sent, items = value_of(fields, "instructions"), value_of(fields, "input")
    listed = cast("list[Body]", items) if isinstance(items, list) else []
    count, head = leading_of(listed), list[Body]()
    if applier.bundle.instructions is not None:
        texts = [sent if isinstance(sent, str) else "", *(text_of(item.get("content")) for item in listed[:count])]
        text = applier.instructions(BLANK_LINE.join(filter(None, texts)), given)
        if count and applier.holds_sent:
            fields.pop("instructions", None)
            head = [{"role": listed[0]["role"], "content": text}] if text else []
        else:
            _write_text(fields, "instructions", text)
    continues = any(value_of(fields, name) for name in ("previous_response_id", "conversation"))
    examples = [] if continues else applier.examples
    replaced = count if applier.bundle.instructions is not None else 0
    if not replaced and not examples:
        return
    if isinstance(items, str):
        raws = [raw_of({"role": "user", "content": items})]
    else:
        raws = RAWS.decode(fields["input"]) if listed else []
    fields["input"] = spliced((), [*map(raw_of, head), *raws[replaced:count], *map(raw_of, examples), *raws[count:]])


def _into_messages(applier: Applier, fields: Fields, given: Mapping[str, object]) -> None:
    if applier.bundle.instructions is not None:
        sent = value_of(fields, "system")
        if isinstance(sent, list) and (place := applier.place_beside()) is not None:
            blocks = cast("list[Body]", sent)  # with their marks for a provider's cache
            if text := applier.instructions("", given):
                blocks.insert(place * len(blocks), {"type": "text", "text": text})
                fields["system"] = raw_of(blocks)
        else:
            _write_text(fields, "system", applier.instructions(text_of(sent), given))
    if applier.examples:
        raws = RAWS.decode(fields["messages"])
        fields["messages"] = spliced(applier.examples, raws)


def _write_text(fields: Fields, name: str, text: str) -> None:
    """Of an empty text APIs want no member."""
    if text:
        fields[name] = raw_of(text)
    else:
        fields.pop(name, None)


def _sample(fields: Fields, bundle: Bundle, api: _Api, limit: str | None) -> None:
    """An override takes the place of every member that an API has for the value, under the name that the agent used."""
    for values, overrides in ((bundle.defaults, False), (bundle.overrides, True)):
        for name, value in msgspec.to_builtins(values or SamplingValues()).items():
            member = api.sampling.get(name)
            if member is None:
                continue
            if member == "reasoning":
                _reason(fields, value, overrides=overrides)
                continue
            aliases = api.aliases.get(name, ())
            known = [other for other in (member, *aliases) if (other in fields and bytes(fields[other]) != b"null")]
            if known and not overrides:
                continue
            for other in known[1:]:
                del fields[other]
            named = limit if limit in aliases else member
            fields[known[0] if known else named] = raw_of(value)


def _reason(fields: Fields, effort: str, *, overrides: bool) -> None:
    """The effort of a response stands beside what else the agent says of its reasoning."""
    given = value_of(fields, "reasoning")
    sent = cast("Body", given) if isinstance(given, dict) else {}
    if overrides or sent.get("effort") is None:
        fields["reasoning"] = raw_of({**sent, "effort": effort})


def _chat_format(fields: Fields, shape: Body) -> None:
    fields["response_format"] = raw_of(shape)


def _responses_format(fields: Fields, shape: Body) -> None:
    text = value_of(fields, "text")
    flat = {"type": shape.get("type"), **cast("Body", shape.get("json_schema") or {})}
    fields["text"] = raw_of({**(cast("Body", text) if isinstance(text, dict) else {}), "format": flat})


def _messages_format(fields: Fields, shape: Body) -> None:
    schema = cast("Body", shape.get("json_schema") or {}).get("schema")
    if schema is None:  # this API knows formats by schema alone
        return
    config = value_of(fields, "output_config")
    known = cast("Body", config) if isinstance(config, dict) else {}
    fields["output_config"] = raw_of({**known, "format": {"type": "json_schema", "schema": schema}})


_APIS: Mapping[str, _Api] = {
    CHAT.name: _Api(
        instruct=None,
        sampling=_CHAT_NAMES,
        aliases={"max_tokens": ("max_tokens",)},
        tools=CHAT_TOOLS,
        respond=_chat_format,
    ),
    TEXT.name: _Api(
        instruct=None,
        sampling=_CHAT_NAMES | {"max_tokens": "max_tokens"},
        aliases={},
        tools=CHAT_TOOLS,
        respond=_chat_format,
    ),
    RESPONSES.name: _Api(
        instruct=_into_responses,
        sampling=_RESPONSES_NAMES | {"reasoning_effort": "reasoning"},
        aliases={},
        tools=RESPONSES_TOOLS,
        respond=_responses_format,
    ),
    MESSAGES.name: _Api(
        instruct=_into_messages,
        sampling=_MESSAGES_NAMES,
        aliases={},
        tools=MESSAGES_TOOLS,
        respond=_messages_format,
    ),
}
"""By the name of a dialect."""
