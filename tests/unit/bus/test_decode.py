"""Bytes that hold no message raise one kind of error, whatever is wrong with them."""

from __future__ import annotations

import struct
from typing import Any, Literal

import msgspec
import pytest

from ratchet.bus.message import Value, mismatch, unpack
from ratchet.core.contract import decode
from tests.support.hostile import DAMAGED_JSON, OFF_UNICODE


class Note(Value, frozen=True, kw_only=True):
    kind: str = ""
    rest: Any = None


@pytest.mark.parametrize("body", [*DAMAGED_JSON, *OFF_UNICODE], ids=lambda body: repr(body[:20]))
def test_invalid_json_is_a_decode_error(body: bytes | str) -> None:
    for kind in (Note, Any):
        with pytest.raises(msgspec.DecodeError):
            decode(body, kind)


class Line(Value, frozen=True, kw_only=True):
    unit: Literal["kg", 7] = "kg"
    prices: dict[str, int] | None = None
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"{self.unit} of {self.count} - at `$.wrong")


class Lines(Value, frozen=True, kw_only=True):
    lines: list[Line]


OTHER = "a value that its type does not have"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{", ("Input data was truncated", "")),
        (b"{}", ("Object missing required field `lines`", "")),
        (b'{"lines": 1}', ("Expected `array`, got `int`", "$.lines")),
        (b'{"lines": [{"unit": "sk-hunter2"}]}', (OTHER, "$.lines[0].unit")),
        (b'{"lines": [{"unit": 4711}]}', (OTHER, "$.lines[0].unit")),
        (b'{"lines": [{"unit": "x - at `$.sk-hunter2`"}]}', (OTHER, "$.lines[0].unit")),
        (b'{"lines": [{"prices": {"sk-hunter2": "x"}}]}', ("Expected `int`, got `str`", "$.lines[0].prices[...]")),
        (b'{"lines": [{"count": -4711}]}', (OTHER, "$.lines[0]")),
    ],
)
def test_a_mismatch_is_reported_without_the_value(body: bytes, expected: tuple[str, str]) -> None:
    with pytest.raises(msgspec.DecodeError) as error:
        decode(body, Lines)
    assert mismatch(error.value) == expected


def test_another_type_is_a_validation_error() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(b'{"kind": 7}', Note)


def test_without_a_kind_the_plain_json_comes_back() -> None:
    assert decode(b'{"kind": [1, "x"]}') == {"kind": [1, "x"]}


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\x81\xa4kind\xa1\xff", b"\x81\xa4rest" + b"\x91" * 100_000, struct.pack(">BI", 0xDB, 2**31)],
    ids=lambda body: repr(body[:20]),
)
def test_invalid_messagepack_is_a_decode_error(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        unpack(body, Note)
