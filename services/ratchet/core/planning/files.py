"""A planner's file: safetensors, whose metadata holds vocabulary, kind of selector and what it was trained on.

The format is read and written here, because the package of that name is no dependency of services.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ratchet.bus.message import Value, decode, encode
from ratchet.core.contract.workflows import TASK_TYPES, TaskType, WorkerName
from ratchet.core.errors import Rejected
from ratchet.core.planning.base import Version0
from ratchet.core.planning.learned import LearnedPlanner
from ratchet.core.planning.network import NetworkSelector, PlanHead, shapes
from ratchet.core.planning.selectors import SELECTORS, table_shapes, wrong_table

MOST_BYTES = 64 * 1024**2
"""A planner has a few hundred kilobytes."""
MOST_WEIGHT = 1e6
"""Far above what trainings make, or sums of a table come to; far below where products of weights overflow."""
NETWORK, LINUCB, THOMPSON = "network", "linucb", "thompson"
KINDS = (NETWORK, LINUCB, THOMPSON)
_TYPES = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
_NAMES = {kind: name for name, kind in _TYPES.items()}


class Description(Value, frozen=True, kw_only=True):
    """What a file says of its planner, as JSON in its metadata under `planner`."""

    format: int = 1
    task_types: Annotated[tuple[TaskType, ...], Meta(min_length=1, max_length=100)] = TASK_TYPES
    selector: str
    """One of `KINDS`; without `network`, the head's weights may be missing: it plans one sub-task then."""
    workers: tuple[WorkerName, ...] = ()
    """Of the tables of `linucb` and `thompson`."""
    trained_on: tuple[str, ...] = ()
    """`learned.execution_digest` of each execution that it has learned from, sorted."""


@dataclass(frozen=True, slots=True)
class PlannerFile:
    """Description and tensors."""

    description: Description
    tensors: Mapping[str, NDArray[Any]]


class _Tensor(Value, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Metadata(Value, frozen=True):
    planner: str


def load_planner(blob: bytes) -> LearnedPlanner:
    """The planner in a file. Raises `Rejected` for everything that is not a whole one with finite numbers."""
    file = read_file(blob)
    description, tensors = file.description, file.tensors
    types = description.task_types
    head = PlanHead(tensors, types) if "plan.text" in tensors else Version0(types)
    if description.selector == NETWORK:
        selector = NetworkSelector(tensors, types)
    else:
        selector = SELECTORS[description.selector](types, description.workers, tensors)
    return LearnedPlanner(types, head, selector, frozenset(description.trained_on))


def read_file(blob: bytes) -> PlannerFile:
    """Raises `Rejected` as `load_planner` does."""
    description, tensors = _read(blob)
    _check(description, tensors)
    return PlannerFile(description, tensors)


def save_planner(file: PlannerFile) -> bytes:
    """The bytes of a file, the same for the same content. Raises `Rejected` for what could not be loaded."""
    _check(file.description, file.tensors)
    header: dict[str, Any] = {"__metadata__": {"planner": encode(file.description).decode()}}
    parts: list[bytes] = []
    end = 0
    for name in sorted(file.tensors):
        tensor = file.tensors[name]
        kind = tensor.dtype.newbyteorder("<")
        parts.append(np.ascontiguousarray(tensor, kind).tobytes())
        begin, end = end, end + len(parts[-1])
        header[name] = {"dtype": _NAMES[kind], "shape": tensor.shape, "data_offsets": [begin, end]}
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-len(encoded) % 8)
    return struct.pack("<Q", len(encoded)) + encoded + b"".join(parts)


def _read(blob: bytes) -> tuple[Description, dict[str, NDArray[Any]]]:
    if len(blob) > MOST_BYTES:
        raise Rejected(f"the planner's file has {len(blob)} bytes; {MOST_BYTES} are allowed")
    length = struct.unpack("<Q", blob[:8].ljust(8, b"\0"))[0]
    if not 2 <= length <= len(blob) - 8:
        raise Rejected("the planner's file is truncated or not a safetensors file")
    try:
        members = decode(blob[8 : 8 + length], dict[str, msgspec.Raw])
        metadata = decode(bytes(members.pop("__metadata__", msgspec.Raw(b"{}"))), _Metadata)
        description = decode(metadata.planner, Description)
        named = {name: decode(bytes(raw), _Tensor) for name, raw in members.items()}
    except msgspec.DecodeError as error:
        raise Rejected(f"the header of the planner's file cannot be read: {error}") from error
    content = blob[8 + length :]
    return description, {name: _tensor(name, tensor, content) for name, tensor in named.items()}


def _tensor(name: str, tensor: _Tensor, content: bytes) -> NDArray[Any]:
    kind = _TYPES.get(tensor.dtype)
    if kind is None:
        raise Rejected(f"the planner's file holds {name} as {tensor.dtype}; it must be {' or '.join(_TYPES)}")
    begin, end = tensor.data_offsets
    if min(tensor.shape, default=1) < 1 or begin < 0 or end - begin != kind.itemsize * prod(tensor.shape):
        raise Rejected(f"the planner's file is not a whole safetensors file: {name} is not where its shape puts it")
    if end > len(content):
        raise Rejected(f"the planner's file is truncated: {name} ends after it does")
    return np.frombuffer(content[begin:end], kind).reshape(tensor.shape)


def _check(description: Description, tensors: Mapping[str, NDArray[Any]]) -> None:
    if description.format != 1:
        raise Rejected(f"the planner's file has the format {description.format}; this version reads 1")
    if description.selector not in KINDS:
        raise Rejected(f"unknown selector {description.selector[:40]!r}; there are {', '.join(KINDS)}")
    unknown = [task_type for task_type in description.task_types if task_type not in TASK_TYPES]
    if unknown or len(set(description.task_types)) != len(description.task_types):
        raise Rejected(f"the planner's task types must be different ones of {', '.join(TASK_TYPES)}")
    expected = _expected(description, with_head="plan.text" in tensors)
    if set(expected) != set(tensors):
        name = min(set(expected) ^ set(tensors))
        raise Rejected(f"the planner's file {'lacks' if name in expected else 'has the unknown tensor'} {name[:80]}")
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise Rejected(f"{name} of the planner's file has the shape {tensors[name].shape}; it must be {shape}")
        if not (np.abs(tensors[name]) <= MOST_WEIGHT).all():
            raise Rejected(f"{name} of the planner's file has a number beyond {MOST_WEIGHT:.0e}, or not finite")
    wrong = wrong_table(tensors)
    if wrong:
        raise Rejected(f"{wrong} of the planner's file must be a table of sums, all of them positive")


def _expected(description: Description, with_head: bool) -> dict[str, tuple[int, ...]]:
    network = shapes(len(description.task_types))
    if description.selector == NETWORK:
        return network
    head = {name: shape for name, shape in network.items() if name.startswith("plan.")} if with_head else {}
    if not description.workers or len(set(description.workers)) != len(description.workers):
        raise Rejected("the planner's file names no workers, or one of them twice")
    return head | table_shapes(description.selector, len(description.task_types), len(description.workers))
