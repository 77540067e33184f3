"""The curves of a training as a file of events that TensorBoard reads: records of TFRecord with `Event` messages.

Two formats of a few lines each (tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto) take no
package: a record is its length and its bytes, each with a masked CRC-32C; an event is a time, a step and a figure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ratchet.core.rules.figures import SECONDS, train_steps

VERSION = b"brain.Event:2"
"""What the first event of a file says."""
CASTAGNOLI = 0x82F63B78
"""The polynomial of CRC-32C, lowest bit first."""


def event_file(lines: bytes, ended_at: float) -> bytes:
    """The events of a `metrics.jsonl` whose last train step ended at `ended_at`, in seconds since the epoch."""
    steps = [*train_steps(lines)]
    at = ended_at - sum(step.figures.get(SECONDS, 0.0) for step in steps)
    records = [_record(_double(1, at) + _bytes(3, VERSION))]
    for step in steps:
        at += step.figures.get(SECONDS, 0.0)
        values = b"".join(
            _bytes(1, _bytes(1, name.encode()) + _key(2, 5) + struct.pack("<f", value))
            for name, value in step.figures.items()
            if abs(value) < FLOAT_MAX
        )
        records.append(_record(_double(1, at) + _key(2, 0) + _varint(step.number) + _bytes(5, values)))
    return b"".join(records)


FLOAT_MAX = 3.4e38
"""A figure is stored in 32 bits."""


def _crc_table() -> Iterator[int]:
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (CASTAGNOLI if crc & 1 else 0)
        yield crc


_TABLE = tuple(_crc_table())


def _checked(data: bytes) -> bytes:
    """The data with its masked checksum."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return data + struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _record(data: bytes) -> bytes:
    return _checked(struct.pack("<Q", len(data))) + _checked(data)


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, 2) + _varint(len(value)) + value
