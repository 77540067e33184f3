"""What an agent asks of a model, read as far as the gateway relies on it, and spliced into requests to engines.

The gateway decodes the members that it uses and copies all others byte by byte: an engine gets them as the agent wrote
them, whatever they mean.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import msgspec

from ratchet.core.contract import JsonObject
from ratchet.core.contract.turn import Constraint, Sampling
from ratchet.core.errors import BadRequest
from ratchet.core.rules import constraints
from ratchet.core.rules.bundles import VARIABLES
from ratchet.core.rules.constraints import MEMBERS, Irreproducible
from ratchet.dialects.foreign_values import with_whole_characters

T = TypeVar("T")

Body = dict[str, Any]
"""A request's or answer's JSON object. `Any`: the gateway checks the members that it uses, the engine the rest."""
Fields = dict[str, msgspec.Raw]
"""The members of a JSON object, each as it was sent."""
MAX_CHOICES = 64
"""Most answers to one call (`n`): each is a turn."""
INTEGERS = 2**63
"""Integers of a request lie below this, and not below its negative: engines and tables hold no larger ones."""
_INTEGER_MEMBERS = frozenset(
    {
        "best_of",
        "dimensions",
        "logprobs",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "max_tool_calls",
        "min_tokens",
        "n",
        "prompt_logprobs",
        "seed",
        "top_k",
        "top_logprobs",
        "truncate_prompt_tokens",
    }
)
"""Members of all APIs whose number is an integer: YAML, Lua and others write `50.0`, which servers refuse."""
STEP_BYTES = 256 * 1024
"""A larger value is read in steps: of its members and items each by itself."""
PLAIN_ITEMS = 10_000
"""A list of more items than this, with fewer lists and objects among them, is read at once: token ids, say."""
STEPS = 6
"""How deep a value is read so: messages, a message, its parts, a part, what it holds, and its members."""
MAX_MEMBERS = 1_000
"""Most members of a request: APIs have fewer than a hundred."""
MAX_MESSAGES = 100_000
"""Most messages of a chat; providers take as many (Anthropic) or fewer."""
MODEL_CHARACTERS = 200
"""Longest name of a model."""
NEUTRAL: Fields = {
    "temperature": msgspec.Raw(b"1.0"),
    "top_p": msgspec.Raw(b"1.0"),
    "top_k": msgspec.Raw(b"-1"),
    "min_p": msgspec.Raw(b"0.0"),
    "presence_penalty": msgspec.Raw(b"0.0"),
    "frequency_penalty": msgspec.Raw(b"0.0"),
    "repetition_penalty": msgspec.Raw(b"1.0"),
}
"""The gateway sends these where the agent sets nothing: vLLM would use its model's generation config instead."""
TRUE = msgspec.Raw(b"true")

ADAPTER_ID = "adapter_id"
"""The member that names a role or a version beside the model: it must exist."""
EXTRA_BODY = "extra_body"
"""OpenAI's Python client merges this argument into the body. Agents that write JSON themselves send it as a member."""

PARAMETER_BYTES, MAX_PARAMETERS = 16 * 1024, 64
"""Bounds on the further members of a request that a turn records: of each, and of their number."""
_RECORDED = frozenset(
    {
        ADAPTER_ID,
        "frequency_penalty",
        "functions",
        "input",
        "instructions",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "messages",
        "min_p",
        "model",
        "presence_penalty",
        "prompt",
        "repetition_penalty",
        "return_token_ids",
        "safety_identifier",
        "seed",
        "stream",
        "stream_options",
        "system",
        "temperature",
        "tools",
        "top_k",
        "top_p",
        "user",
    }
)
"""Members that a turn records elsewhere, or must not hold: who the end user is."""
USER_ID = "user_id"
"""The member of `metadata` that names the end user."""
USER_ID_CHARACTERS = 1_000
"""How far a `metadata.user_id` is searched for a session and an account."""
UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
CLAUDE_SESSION = re.compile(rf"""(?:_session_|"session_id":\s?")({UUID})""")
"""The session in Claude Code's `metadata.user_id`: after an underscore until 2025, in JSON since."""
_CLAUDE_ACCOUNT = re.compile(rf"""(?:_account_|"account_uuid":\s?")({UUID})""")
_ONLY_OURS = frozenset({ADAPTER_ID, VARIABLES})
"""Members that only the gateway understands."""
_ONLY_POLICIES = _ONLY_OURS | {"return_token_ids"}
"""Members that providers do not know."""
_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})
"""Types of content parts that hold only text."""
_BESIDE_TEXT = ("audio", "images")
"""Members of an assistant's message that hold more than text."""
_FIELDS = msgspec.json.Decoder(Fields)
_VALUE = msgspec.json.Decoder()
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])
_NO_MESSAGES = "messages must be a non-empty list of objects"


class AsChat(Protocol):
    """A request of another API as a chat completion request."""

    @property
    def chat(self) -> Body:
        """Its members."""
        ...


class CallRequest(msgspec.Struct, frozen=True):
    """A checked request of an agent."""

    fields: Fields
    """All members, as the agent sent them."""
    model: str
    """The model as the agent names it."""
    named_by: str
    """The member that named the model: `model` or `adapter_id`."""
    messages: list[JsonObject]
    """The prompt as chat messages, as turns hold it."""
    sampling: Sampling
    stream: bool
    include_usage: bool
    """A stream ends with a chunk that holds the usage."""
    wants_logprobs: bool
    wants_token_ids: bool
    choices: int = 1
    """How many answers the agent asks for: `n` for each prompt."""
    prompts: Sequence[list[JsonObject]] = ()
    """The prompts of a text call, each as chat messages: engines answer one after the other."""
    searchable: bool = True
    """Whether the prompt is text: the recorder cannot search token ids for secrets."""
    headers: Sequence[tuple[bytes, bytes]] = ()
    """Headers of the agent that go on to the engine."""
    adds_usage: bool = True
    """Whether the gateway asks for the usage of a stream where the agent did not."""
    query: str = ""
    """The part after the path's `?`, which goes on to providers."""
    as_chat: AsChat | None = None
    """The request as a chat, where its API is another one."""
    answer_id: str = ""
    """Of an answer that the gateway makes: in a translated call."""
    at: int = 0
    """When it came, in seconds since 1970."""
    trajectory_id: str = ""
    """Its trajectory, whose calls profit from one replica of their engine."""

    @property
    def asked_model(self) -> str:
        """The member `model`, also where `adapter_id` names the policy."""
        named = value_of(self.fields, "model") if self.named_by == ADAPTER_ID else self.model
        return named if isinstance(named, str) and is_model_name(named) else self.model

    def has(self, name: str) -> bool:
        """Whether the agent sent the member, which is a chat's."""
        return name in (self.fields if self.as_chat is None else self.as_chat.chat)

    @property
    def tools(self) -> list[JsonObject]:
        """The tools that it offers, those of an older chat's `functions` too."""
        functions = self.value("functions")
        older = cast("list[Any]", functions) if isinstance(functions, list) else []
        named = ({"type": "function", "function": function} for function in older if isinstance(function, dict))
        return [*(self.value("tools") or []), *named]

    @property
    def may_call_tools(self) -> bool:
        """Whether tools are offered, and their choice is the policy's own: a grammar makes a forced call."""
        return bool(self.value("tools")) and self.value("tool_choice") in (None, "auto")

    def messages_of(self, choice: int) -> list[JsonObject]:
        """The prompt that an answer belongs to, by the answer's number."""
        return self.prompts[choice * len(self.prompts) // self.choices] if self.prompts else self.messages

    def value(self, name: str) -> Any:
        """One member of the chat, decoded; None when it is absent. `Any`: agents write what they like."""
        return value_of(self.fields, name) if self.as_chat is None else self.as_chat.chat.get(name)


def read_fields(body: bytes) -> Fields:
    """The members of a request. U+FFFD stands for each half of a character: JavaScript cuts emoji in two. An integer
    that is written as a float without a fraction becomes one.

    Raises `BadRequest` unless it is a JSON object in UTF-8, or where it has more members than an API may have.
    """
    fields = _split(body.removeprefix(codecs.BOM_UTF8))
    if len(fields) > MAX_MEMBERS:
        raise BadRequest(f"the body has {len(fields)} members; at most {MAX_MEMBERS} are read", code="too_many_values")
    for name in _INTEGER_MEMBERS & fields.keys():
        raw = bytes(fields[name])
        if b"." in raw or b"e" in raw or b"E" in raw:
            value = value_of(fields, name)
            if isinstance(value, float) and value.is_integer() and -INTEGERS <= value < INTEGERS:
                fields[name] = _raw(int(value))
    extra = value_of(fields, EXTRA_BODY)
    if isinstance(extra, dict) and (ours := (_ONLY_OURS & extra.keys()) - fields.keys()):
        fields |= {name: _raw(extra.pop(name)) for name in ours}
        fields[EXTRA_BODY] = _raw(extra)
        if not extra:
            del fields[EXTRA_BODY]
    return fields


def _split(body: bytes) -> Fields:
    """The members as they are. Raises `BadRequest`."""
    try:
        body.decode()  # what is not decoded here is copied into a request of ours
        try:
            return _FIELDS.decode(body)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            return _FIELDS.decode(with_whole_characters(body))
    except msgspec.ValidationError as error:
        raise BadRequest("the body must be a JSON object", code="invalid_json") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {_reason(error)}", code="invalid_json") from error


def _reason(error: Exception) -> str:
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)


def value_of(fields: Fields, name: str) -> Any:
    """One member, decoded; None when it is absent. `Any`: agents write what they like. Raises `BadRequest`."""
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return _VALUE.decode(raw) if len(memoryview(raw)) <= STEP_BYTES else _decoded_in_steps(raw, STEPS)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"{name} is not JSON: {_reason(error)}", param=name, code="invalid_json") from error


def _decoded_in_steps(raw: msgspec.Raw, steps: int) -> Any:
    """What `_VALUE.decode` gives. Another thread has its turn between two steps."""
    view = memoryview(raw)
    kind = bytes(view[:1])
    if steps == 0 or len(view) <= STEP_BYTES or kind not in (b"[", b"{"):
        return _VALUE.decode(raw)
    if kind == b"[":
        items = _RAWS.decode(raw)
        if len(items) > PLAIN_ITEMS and bytes(view).count(b"[") + bytes(view).count(b"{") < PLAIN_ITEMS:
            return _VALUE.decode(raw)
        return [_decoded_in_steps(item, steps - 1) for item in items]
    return {name: _decoded_in_steps(member, steps - 1) for name, member in _FIELDS.decode(raw).items()}


def read_messages(fields: Fields) -> list[JsonObject]:
    """The messages of a chat. Raises `BadRequest` unless they are objects, and at least one."""
    messages: Any = value_of(fields, "messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest(_NO_MESSAGES, param="messages")
    given = cast("list[Any]", messages)
    if len(given) > MAX_MESSAGES:
        raise BadRequest(f"messages must be at most {MAX_MESSAGES}", param="messages")
    if not all(isinstance(message, dict) for message in given):
        raise BadRequest(_NO_MESSAGES, param="messages")
    return cast("list[JsonObject]", given)


def read_call(
    fields: Fields, messages: list[JsonObject], *, wants_logprobs: bool = False, searchable: bool = True
) -> CallRequest:
    """Reads the members that all completion routes share. Raises `BadRequest`."""
    options = value_of(fields, "stream_options")
    if options is not None and not isinstance(options, dict):
        raise BadRequest("stream_options must be an object", param="stream_options")
    named_by = ADAPTER_ID if value_of(fields, ADAPTER_ID) else "model"
    name = value_of(fields, named_by)
    if not isinstance(name, str) or not is_model_name(name):
        message = f"{named_by} must be a string: a role, role@version, or any other name of a model"
        raise BadRequest(message, param=named_by)
    choices = _integer(fields, "n")
    if choices is not None and not 0 < choices <= MAX_CHOICES:
        raise BadRequest(f"n must be between 1 and {MAX_CHOICES}", param="n")
    return CallRequest(
        fields=fields,
        model=name,
        named_by=named_by,
        messages=messages,
        sampling=_sampling(fields),
        stream=_flag(fields, "stream"),
        include_usage=bool(cast("Body", options or {}).get("include_usage")),
        wants_logprobs=wants_logprobs,
        wants_token_ids=_flag(fields, "return_token_ids"),
        choices=choices or 1,
        searchable=searchable,
    )


def is_model_name(name: str) -> bool:
    """Whether an agent may name a model so."""
    return name.isprintable() and 0 < len(name) <= MODEL_CHARACTERS


def parameters_of(request: CallRequest, role: str) -> JsonObject | None:
    """What else an agent asks for, beside what a turn of the role records in members of its own; None without any.

    `model` is the name that stood for the role, where it is another one. `left_out` names members that are too long.
    """
    fields = request.fields
    parameters: JsonObject = {"model": request.model} if request.model != role else {}
    left_out: list[str] = []
    for name, raw in fields.items():
        if name in _RECORDED or bytes(raw) == b"null" or len(name) > PARAMETER_BYTES:
            continue
        if len(bytes(raw)) > PARAMETER_BYTES or len(parameters) == MAX_PARAMETERS:
            left_out.append(name)
        else:
            parameters[name] = value_of(fields, name)
            if name == "metadata" and isinstance(parameters[name], dict):
                parameters[name].pop(USER_ID, None)
    if left_out:
        parameters["left_out"] = left_out[:MAX_PARAMETERS]
    return parameters or None


def end_user_of(request: CallRequest) -> str | None:
    """Who the end user is, in the words of the agent; in Anthropic's API a member of the metadata.

    Claude Code names device, account and session in that: the account is the user, else all but the session.
    """
    metadata = value_of(request.fields, "metadata")
    user_id = cast("Body", metadata).get(USER_ID) if isinstance(metadata, dict) else None
    named = (request.value("user"), value_of(request.fields, "safety_identifier"), user_id)
    user = next((name for name in named if isinstance(name, str) and name), None)
    if user is None or not CLAUDE_SESSION.search(user[:USER_ID_CHARACTERS]):
        return user
    account = _CLAUDE_ACCOUNT.search(user[:USER_ID_CHARACTERS])
    return account[1] if account else CLAUDE_SESSION.sub("", user[:USER_ID_CHARACTERS])


def constraint_of(request: CallRequest) -> Constraint | Irreproducible | None:
    """What the request constrains its answer to; or that it moves the distribution as no learner can compute again.

    None: every token is drawn freely.
    """
    members = {name: request.value(name) for name in MEMBERS if request.has(name)}
    return constraints.constraint_of(members, tools=not request.has("prompt"))


def is_multimodal(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a message holds more than text: token ids stand for an image or a sound, but do not show it."""
    if any(message.get(name) for message in messages for name in _BESIDE_TEXT):
        return True
    contents = [message.get("content") for message in messages]
    parts: list[Any] = [
        part for content in contents if isinstance(content, list) for part in cast("list[Any]", content)
    ]
    return any(not isinstance(part, dict) or part.get("type") not in _TEXT_PARTS for part in parts)


def engine_fields(request: CallRequest, policy: str) -> Fields:
    """The request to an engine that holds policies: it samples as the agent asked and returns token ids."""
    kept = {
        key: value
        for key, value in request.fields.items()
        if key not in _ONLY_OURS and (key not in NEUTRAL or bytes(value) != b"null")
    }
    return _streamed({**NEUTRAL, **kept, "model": _raw(policy), "return_token_ids": TRUE}, request)


def provider_fields(request: CallRequest, model: str) -> Fields:
    """The request to any OpenAI-compatible server: the agent's own members, with the server's name for the model."""
    return _streamed(forwarded_fields(request.fields, model), request)


def forwarded_fields(fields: Fields, model: str) -> Fields:
    """The members of any request to a server that is no policy's, with the server's name for the model."""
    return {**{key: value for key, value in fields.items() if key not in _ONLY_POLICIES}, "model": _raw(model)}


def _streamed(fields: Fields, request: CallRequest) -> Fields:
    """A stream always ends with its usage, which turns record."""
    if request.stream and request.adds_usage and not request.include_usage:
        options = {**(value_of(request.fields, "stream_options") or {}), "include_usage": True}
        fields["stream_options"] = _raw(options)
    return fields


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _sampling(fields: Fields) -> Sampling:
    temperature, top_p = _number(fields, "temperature"), _number(fields, "top_p")
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=_integer(fields, "top_k"),
        min_p=_number(fields, "min_p"),
        presence_penalty=_number(fields, "presence_penalty"),
        frequency_penalty=_number(fields, "frequency_penalty"),
        repetition_penalty=_number(fields, "repetition_penalty"),
        seed=_integer(fields, "seed"),
        max_tokens=_integer(fields, "max_completion_tokens") or _integer(fields, "max_tokens"),
    )


def _flag(fields: Fields, name: str) -> bool:
    value = value_of(fields, name)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{name} must be true or false", param=name)
    return bool(value)


def _number(fields: Fields, name: str) -> float | None:
    value = value_of(fields, name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"{name} must be a number", param=name)
    try:
        return float(value)
    except OverflowError as error:
        raise BadRequest(f"{name} is too large: it must fit into a 64-bit float", param=name) from error


def _integer(fields: Fields, name: str) -> int | None:
    value = value_of(fields, name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(f"{name} must be an integer", param=name)
    if not -INTEGERS <= value < INTEGERS:
        raise BadRequest(f"{name} must fit into 64 bits", param=name)
    return value
