"""Messages that no sender should send: broken bodies and odd headers, the same ones every time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import zstandard
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.support.contract_files import SCHEMAS, example, fast
from tests.support.schema_values import free_objects, leaves, values

ANYTHING = leaves | st.lists(leaves, max_size=2) | free_objects
NUMBERS: list[Any] = [2**31, 2**63, -(2**63), 2**64 - 1, 2**70, 1.5e308, 5e-324, -1.0]
TEXTS: list[Any] = ["x" * 70_000, "\0", "\ufffd", "\u202e'; --\\", ""]
INSTANTS: list[Any] = ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59+14:00", "9999-12-31T23:59:59-14:00"]
HUGE = [*NUMBERS, *TEXTS, *INSTANTS, []]
"""Values at and beyond the edges of what columns hold."""

HOSTILE_TEXTS = [
    '{"a":' * 1_500,
    '{"a":' * 100_000,
    '{"a":' * 1_500 + "1" + "}" * 1_500,
    '{"a":' * 300 + "1" + "}" * 300,
    '{"role": "assistant", "content": "x", "tool_calls": ' + "[" * 2_000,
    '{"role": "assistant", "content": "x", "tool_calls": ' + "[" * 300 + "]" * 300 + "}",
    "[" * 100_000,
    "[" * 100_000 + "]" * 100_000,
    '{"n": 1' + "0" * 5_000 + "}",
    '{"n": 1' + "0" * 4_000 + "}",
    '{"n": 1e999, "m": -1e999}',
    '{"n": NaN, "m": Infinity}',
    '{"role": "assistant"}',
    '{"role": "assistant", "content": 7}',
    '{"role": "assistant", "content": ["x", 7]}',
    '{"role": "assistant", "content": null, "tool_calls": "x"}',
    '{"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function": "x"}]}',
    '{"role": ["assistant"], "content": {}}',
    '{"é": "\\ud800", "password": "x"}',
    '{"a": "\\ud83d", "a": "\\ude00"}',
    "\x00\x1b]0;hacked\x07\x1b[31m\u202e\u2066",
    "{" + '"' * 50_000,
    '{"a": "' + "\\" * 50_001,
]
"""Texts that a model may answer or an agent may get: valid Unicode, broken content."""
OFF_UNICODE = ["\ud800", "ok \udc80 ok", '{"a": "\udfff"}']
"""Text that Python can hold and no JSON can (`surrogateescape`)."""

DAMAGED_JSON = [
    b"",
    b"not json",
    b'{"kind": "',
    b'{"kind": "\xff"}',
    b'{"kind": "x", "beside": ' + b"[" * 100_000,
    b"\x00" * 100,
]
"""Bytes that a disk or an object store may return in the place of an object with the member `kind`."""

HEADERS: list[dict[str, str]] = [
    {},
    {"content-encoding": "gzip"},
    {"content-encoding": "zstd"},
    {"content-encoding": ""},
    {"Status": "409", "Description": "Consumer Deleted"},
    {"ce-id": "x" * 10_000},
    {"ce-id": "x" * 60_000},
    {"ce-id": "'; DROP TABLE trajectories; --\\"},
    {"ce-id": "übel", "ce-correlationid": "", "ce-causationid": "y" * 5_000},
    {"ce-time": "yesterday", "ce-type": "agent.rl.nonsense.v9", "ce-specversion": "7"},
    {"traceparent": "zz", "Nats-Expected-Stream-Name": "", "content-type": "text/xml"},
]


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a document."""
    parts = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in parts:
        yield (*path, key)
        yield from places(value, (*path, key))


def changed(document: Any, path: tuple[Any, ...], how: str, value: Any) -> Any:
    """A copy with one value replaced, removed, doubled, or joined by an unknown one."""
    copy = msgspec.json.decode(msgspec.json.encode(document))
    holder = copy
    for key in path[:-1]:
        holder = holder[key]
    if how == "remove":
        del holder[path[-1]]
    elif how == "double":
        holder[path[-1]] = [holder[path[-1]]] * 2
    elif how == "add" and isinstance(holder, dict):
        holder["nobody_knows"] = value
    else:
        holder[path[-1]] = value
    return copy


@st.composite
def mutations(draw: st.DrawFn, name: str) -> Any:
    """A valid example of a schema with one to three changes."""
    document = example(name)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(document)) or [("nobody_knows",)]))
        how = draw(st.sampled_from(["replace", "remove", "double", "add"]))
        document = changed(document, path, how, draw(ANYTHING | st.sampled_from(HUGE)))
    return document


def nested(depth: int) -> bytes:
    """A body that nests deeper than any reader should follow."""
    return b"[" * depth + b"]" * depth


def broken_bodies(name: str, count: int) -> list[bytes]:
    """Bodies that are hardly messages of a schema: bytes, torn JSON, deep nesting. The same ones every time."""
    chance = random.Random(f"broken {name}")
    body = msgspec.json.encode(example(name))
    bodies = [b"", b"null", b"\xff\xfe", nested(300), nested(100_000), b'{"a":' * 400, zstandard.compress(body)]
    while len(bodies) < count:
        cut, kept = chance.randrange(len(body)), bytearray(body)
        kept[cut] = chance.randrange(256)
        bodies.append(chance.choice([body[:cut], bytes(kept), chance.randbytes(40), body[cut:] + body[:cut]]))
    return bodies[:count]


def valid_bodies(name: str, count: int) -> list[Any]:
    """Random strict messages of a schema, the same ones every time."""
    documents: list[Any] = []

    @settings(max_examples=count, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(values(SCHEMAS[name], SCHEMAS[name]).filter(fast(name).is_valid))
    def collect(document: Any) -> None:
        documents.append(document)

    collect()
    return documents


def extreme_bodies(name: str, count: int) -> list[Any]:
    """The full example with one value at an edge, as far as the strict view takes it. The same ones every time."""
    document = example(name)
    tried = [changed(document, path, "replace", value) for path in places(document) for value in HUGE]
    legal = [one for one in tried if fast(name).is_valid(one)]
    return random.Random(f"extreme {name}").sample(legal, min(count, len(legal)))
