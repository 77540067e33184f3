"""Server-sent events of an engine's stream: cut up, shown to the agent, and folded into the answer that they are."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import msgspec

from ratchet.core.contract.http.answers import ErrorOut, ErrorPart
from ratchet.dialects.answers import hidden_members, without
from ratchet.dialects.requests import MAX_CHOICES, Body, CallRequest, Fields

DONE = b"[DONE]"
"""The data of the last event of a stream."""
KEEP_ALIVE = b": the model is at work\n\n"
"""A comment: clients skip it, and proxies see that the connection lives."""
LEFT_OUT = 8
"""Chunks that cannot be read, without which a stream still is an answer."""
BETWEEN = b"\n\n"
"""What ends an event."""
LAST_EVENTS = 3
"""Events at the end of a stream of which one reports its tokens."""
LARGEST_EVENT = 16 * 1024 * 1024
"""Bytes of one event: one with an image has a few million."""

UNREADABLE = (
    msgspec.DecodeError,
    ValueError,
    OverflowError,
    RecursionError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
)
"""What reading another process's JSON raises where it has another shape."""
_PINGS = (b"event: ping", b"event:ping")
_USAGE = frozenset({"usage"})
_FIELDS = msgspec.json.Decoder(Fields)
_CHOICES = msgspec.json.Decoder(list[Fields] | None)
_BODY = msgspec.json.Decoder(Body)


class EventSplitter:
    """Cuts the bytes of a stream into events, whatever pieces they come in."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        """Bytes at the begin of the buffer that hold no end of an event."""
        self._after_return = False
        """The last byte ended a line: a line feed that follows belongs to it."""
        self._begun = False

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that end in this piece, without their blank lines, and the stream without its byte order mark.

        Raises `ValueError` for an endless event.
        """
        events = self._cut(piece)
        if events and not self._begun:
            self._begun = True
            events[0] = events[0].removeprefix(codecs.BOM_UTF8)
        return events

    def _cut(self, piece: bytes) -> list[bytes]:
        if self._after_return:
            piece = piece.removeprefix(b"\n")
        self._after_return = piece.endswith(b"\r")
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not self._buffer and piece.endswith(b"\n\n"):  # as engines send: whole events
            return [event for part in piece.split(b"\n\n") if (event := part.lstrip(b"\n"))]
        self._buffer += piece
        events = list[bytes]()
        begin = 0
        while (end := self._buffer.find(b"\n\n", max(begin, self._searched))) >= 0:
            event = bytes(self._buffer[begin:end]).lstrip(b"\n")
            begin, self._searched = end + 2, 0
            if event:
                events.append(event)
        del self._buffer[:begin]
        self._searched = max(0, len(self._buffer) - 1)
        if len(self._buffer) > LARGEST_EVENT:
            raise ValueError(f"an event of more than {LARGEST_EVENT} bytes")
        return events

    def rest(self) -> list[bytes]:
        """The event that the end of the stream ends: some servers leave out the last blank line."""
        event = bytes(self._buffer).strip(b"\r\n")
        self._buffer.clear()
        return [event] if event else []


def data_of(event: bytes) -> bytes | None:
    """An event's data; None for a comment, or an event without data."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def is_event(event: bytes) -> bool:
    """Whether an event is more than a sign of life: a comment, one without data, or a ping (Anthropic's)."""
    return event.startswith(b"data:") or (b"\ndata:" in event and not event.startswith(_PINGS))


def error_status(data: bytes) -> int | None:
    """The status of the error that an event's data is: one of a client's faults, where it names one, else 502. None for
    data that is no error."""
    if b'"error"' not in data:
        return None
    try:
        error = chunk_of(data).get("error")
    except msgspec.DecodeError:
        return None
    code = cast("Body", error).get("code") if isinstance(error, dict) else None
    is_clients = isinstance(code, int) and 400 <= code < 500
    return (code if is_clients else 502) if error else None


def datas(events: Iterable[bytes]) -> Iterator[bytes]:
    """The data of all events but comments and the last."""
    return (data for event in events if (data := data_of(event)) is not None and data != DONE)


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong with a call, for any API's shape of an error."""

    status: int
    """The status that it has, or would have had before the stream began."""
    error: ErrorPart

    @property
    def json(self) -> bytes:
        """The body of an error of OpenAI's APIs."""
        return msgspec.json.encode(ErrorOut(error=self.error))


def events_of(chunks: Sequence[Body]) -> list[bytes]:
    """The events of a stream, without their blank lines. Those that have a type, unlike chunks of completions, are
    named by it, and the last of them ends the stream."""
    if chunks and "type" in chunks[0]:
        return [b"event: %s\ndata: %s" % (str(chunk["type"]).encode(), msgspec.json.encode(chunk)) for chunk in chunks]
    return [*(b"data: " + msgspec.json.encode(chunk) for chunk in chunks), b"data: " + DONE]


class StreamTranslator(Protocol):
    """Shows the chunks of an engine's stream as events of another API."""

    def feed(self, chunk: Body) -> list[bytes]:
        """The events, as they are sent, that a chunk adds."""
        ...

    def finish(self) -> list[bytes]:
        """The events that end the stream."""
        ...

    def fail(self, problem: Problem) -> list[bytes]:
        """The events that say that the stream broke off."""
        ...


class ShownStream(Protocol):
    """An engine's events as the agent gets them."""

    def feed(self, event: bytes) -> bytes:
        """What the agent gets of one event; may be empty. Raises `msgspec.DecodeError` for what is no chunk."""
        ...

    def finish(self) -> bytes:
        """What follows the engine's last event."""
        ...

    def fail(self, problem: Problem) -> bytes:
        """What the agent gets where the stream breaks off."""
        ...


class PassedStream:
    """The engine's own events, without what only the gateway had asked for."""

    def __init__(self, request: CallRequest, error_event: Callable[[Problem], bytes], *, of_policy: bool) -> None:
        """`of_policy`: the gateway asked for log-probabilities and token ids, and not only for the usage."""
        self._error_event = error_event
        hidden = hidden_members(request) if of_policy else (frozenset[str](), frozenset[str]())
        self._of_chunk, self._of_choices = hidden
        self._keeps_usage = request.include_usage or not request.adds_usage
        if not self._keeps_usage:
            self._of_chunk |= _USAGE

    def feed(self, event: bytes) -> bytes:
        """See `ShownStream`."""
        data = data_of(event)
        if data is None or data == DONE:
            return event + b"\n\n"
        if not self._of_chunk and not self._of_choices:
            return event + b"\n\n"
        if not self._of_choices and self._of_chunk == _USAGE and b'"usage"' not in data:
            return event + b"\n\n"
        fields = _FIELDS.decode(data)
        raw = fields.get("choices")
        choices = _CHOICES.decode(raw) if raw is not None else None
        if raw is not None and not choices and "usage" in fields and not self._keeps_usage:
            return b""
        shown = without(fields, self._of_chunk)
        if choices and self._of_choices:
            shown["choices"] = msgspec.Raw(
                msgspec.json.encode([without(choice, self._of_choices) for choice in choices])
            )
        others = [line + b"\n" for line in event.split(b"\n") if not line.startswith(b"data:")]  # name, id, comments
        return b"".join(others) + b"data: " + msgspec.json.encode(shown) + b"\n\n"

    def finish(self) -> bytes:
        """Nothing: the engine has ended its stream."""
        return b""

    def fail(self, problem: Problem) -> bytes:
        """See `ShownStream`."""
        return self._error_event(problem)


class TranslatedStream:
    """The engine's chunks as events of the API that the agent speaks."""

    def __init__(self, translator: StreamTranslator) -> None:
        self.translator = translator
        self._failed = False
        """The engine has reported an error, which ended the stream."""

    def feed(self, event: bytes) -> bytes:
        """See `ShownStream`."""
        data = data_of(event)
        if data is None or data == DONE or self._failed:
            return b""
        chunk = chunk_of(data)
        error: Any = chunk.get("error")
        if not error:
            return b"".join(self.translator.feed(chunk))
        self._failed = True
        message = cast("Body", error).get("message") if isinstance(error, dict) else error
        text = str(message or "the engine failed")
        return self.fail(Problem(502, ErrorPart(message=text, type="server_error", code="engine_failed")))

    def finish(self) -> bytes:
        """See `ShownStream`."""
        return b"" if self._failed else b"".join(self.translator.finish())

    def fail(self, problem: Problem) -> bytes:
        """See `ShownStream`."""
        return b"".join(self.translator.fail(problem))


def chunk_of(data: bytes) -> Body:
    """A chunk, decoded. Raises `msgspec.DecodeError`."""
    try:
        return _BODY.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def chat_begins(chunk: Body) -> bool:
    """Whether the chunk holds any of the answer, and not only who speaks."""
    for choice in cast("list[Body]", chunk.get("choices") or ()):
        delta: Body = choice.get("delta") or {}
        if choice.get("finish_reason") or any(value for name, value in delta.items() if name != "role"):
            return True
    return False


def text_begins(chunk: Body) -> bool:
    """Whether the chunk holds any of the text."""
    return any(
        choice.get("text") or choice.get("finish_reason") for choice in cast("list[Body]", chunk.get("choices") or ())
    )


def folded(fold: Callable[[Iterable[Body]], Body], parts: Sequence[bytes]) -> tuple[Body, bool]:
    """The answer that the data of a stream's events is, and whether chunks that cannot be read are left out of it.

    Where there are more than `LEFT_OUT` of them, it ends before the first. Raises like `dict` and `list` do where what
    is left is no answer either.
    """
    left_out: list[int] = []

    def chunks() -> Iterator[Body]:
        for number, data in enumerate(parts):
            if number not in left_out:
                left_out.append(number)  # until the next one is asked for
                yield chunk_of(data)
                left_out.pop()

    while len(left_out) < LEFT_OUT:
        known = len(left_out)
        try:
            return fold(chunks()), known > 0
        except UNREADABLE:
            if len(left_out) == known:  # no chunk is to blame
                break
    parts = parts[: min(left_out, default=0)]
    left_out.clear()
    return fold(chunks()), True


def fold_chat(chunks: Iterable[Body]) -> Body:
    """The chat completion that the chunks of a stream are. A message of tool calls alone has no content, as in answers
    that do not stream.

    Raises like `dict` and `list` do for chunks of another shape.
    """
    whole = _fold(chunks, "chat.completion", _fold_message)
    for choice in whole["choices"]:
        message: Body = choice.get("message", {})
        if message.get("content") == "" and message.get("tool_calls"):
            message["content"] = None
    return whole


def fold_text(chunks: Iterable[Body]) -> Body:
    """The text completion that the chunks of a stream are.

    Raises like `dict` and `list` do for chunks of another shape.
    """
    return _fold(
        chunks,
        "text_completion",
        lambda choice, part: choice.setdefault("text", _Pieces()).append(part.get("text") or ""),
    )


def replay_chat(answer: Body) -> list[Body]:
    """A whole chat completion as the chunks of a stream: of the cache, and of an engine that does not stream.

    Each choice comes in two chunks: its message, and how it ended.
    """
    chunks = list[Body]()
    for choice in answer["choices"]:
        message = {name: value for name, value in choice["message"].items() if value is not None}
        if message.get("tool_calls"):
            calls = enumerate(cast("list[Body]", message["tool_calls"]))
            message["tool_calls"] = [{**call, "index": index} for index, call in calls]
        begun = {"index": choice.get("index", 0), "delta": {"role": "assistant", **message}, "finish_reason": None}
        chunks += [begun, {**without(choice, {"message"}), "delta": {}}]
    return _replayed(answer, chunks, "chat.completion.chunk")


def replay_text(answer: Body) -> list[Body]:
    """A whole text completion as the chunks of a stream, one for each choice."""
    return _replayed(answer, [dict(choice) for choice in answer["choices"]], "text_completion")


def _replayed(answer: Body, choices: list[Body], kind: str) -> list[Body]:
    head = without(answer, {"choices", "usage", "prompt_token_ids"}) | {"object": kind, "usage": None}
    chunks: list[Body] = [{**head, "choices": [choice]} for choice in choices]
    if "prompt_token_ids" in answer:
        chunks[0]["prompt_token_ids"] = answer["prompt_token_ids"]
    return [*chunks, {**head, "choices": [], "usage": answer.get("usage")}]


class _Pieces(list[str]):
    """A text that is still coming."""


def _fold(chunks: Iterable[Body], kind: str, fold_choice: Callable[[Body, Body], None]) -> Body:
    whole: Body = {}
    choices: dict[int, Body] = {}
    for chunk in chunks:
        whole |= {name: value for name, value in chunk.items() if name != "choices" and value is not None}
        for part in cast("list[Body]", chunk.get("choices") or ()):
            index = part.get("index", 0)
            if not isinstance(index, int):
                raise TypeError("the index of a choice must be an integer")
            if len(choices) >= MAX_CHOICES and index not in choices:
                raise ValueError(f"more than {MAX_CHOICES} choices")
            choice = choices.setdefault(index, {"index": index})
            fold_choice(choice, part)
            # Log-probabilities and token ids follow each other; of all other members the last one counts.
            for name, value in part.items():
                if value is None or name in {"delta", "text", "index"}:
                    continue
                if name == "token_ids":
                    choice.setdefault(name, []).extend(value)
                elif name == "logprobs":
                    _fold_members(choice.setdefault(name, {}), value)
                else:
                    choice[name] = value
    return {**whole, "object": kind, "choices": [_joined(choices[index]) for index in sorted(choices)]}


def _fold_message(choice: Body, part: Body) -> None:
    message: Body = choice.setdefault("message", {"role": "assistant", "content": None})
    delta = cast("Body", part.get("delta") or {})
    for call in cast("list[Body]", delta.get("tool_calls") or ()):
        calls: list[Body] = message.setdefault("tool_calls", [])
        known = next((earlier for earlier in reversed(calls) if earlier["index"] == call.get("index")), None)
        if known is None or call.get("index") is None:  # without an index it is a call of its own
            known = {"index": call.get("index")}
            calls.append(known)
        _fold_members(known, {name: value for name, value in call.items() if name != "index"}, once=("id", "type"))
    _fold_members(message, {name: value for name, value in delta.items() if name != "tool_calls"}, once=("role",))


def _fold_members(known: Body, added: Body, once: Collection[str] = ()) -> None:
    """Texts and lists follow each other, objects fold; of anything else, and of what is in `once`, the last counts."""
    for name, value in added.items():
        if value is None:
            continue
        earlier = known.get(name)
        if isinstance(value, str) and name not in once:
            if isinstance(earlier, _Pieces):
                earlier.append(value)
            else:
                known[name] = _Pieces([value])
        elif isinstance(value, list) and isinstance(earlier, list):
            cast("list[Any]", earlier).extend(cast("list[Any]", value))
        elif isinstance(value, dict):
            _fold_members(known.setdefault(name, {}), cast("Body", value))
        else:
            known[name] = value


def _joined(value: Any) -> Any:
    """The value with its texts whole. `Any`: it is JSON from another process."""
    if isinstance(value, _Pieces):
        return "".join(value)
    if isinstance(value, dict):
        members = cast("Body", value)
        return {name: _joined(member) for name, member in members.items() if name != "tool_calls"} | (
            {"tool_calls": [_joined(without(call, {"index"})) for call in members["tool_calls"]]}
            if "tool_calls" in members
            else {}
        )
    return value
