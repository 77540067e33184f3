"""The JSON Schemas of the contracts, from the structs of messages, stored values and files: their one source.

python -m tools.contract_schemas           write contracts/schemas
python -m tools.contract_schemas --check   exit 1 when a schema is not what its struct says

A member's type, bounds and pattern are those of the struct, its description the text below it. `T | None` is a member
that may be absent; `null` it takes only where `NULLABLE` says so. What no type can say stands in the struct's `RULES`.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect as types

from ratchet.bus.message import decode
from ratchet.bus.projection import Cursor
from ratchet.bus.schemas import SCHEMA_ID
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.core.contract import MESSAGES
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.evaluation_task import Task
from ratchet.core.contract.notifications import Notification, Receiver
from ratchet.core.contract.opt_out import OptedOut
from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.contract.snapshot import ExecutionRow, LabelRow, PairRow, SnapshotManifest, TrajectoryRow
from ratchet.core.contract.state import HeldOutTasks, Job, Key, PolicyVersion, RaterDecisions, RewardDrift, Route
from ratchet.core.contract.turn import TurnSummary
from ratchet.core.service.openapi import member_words

Json = Any
"""Part of a JSON document."""

CONTRACTS = Path(__file__).resolve().parents[1] / "contracts"
WIDTH = 120
STORED: Mapping[str, Mapping[str, Any]] = {
    "headers": {"turn.summary.v1": TurnSummary},
    "state": {
        "route.v1": Route,
        "policy.v1": PolicyVersion,
        "bundle.v1": Bundle,
        "held_out.v1": HeldOutTasks,
        "raters.v1": RaterDecisions,
        "rollout.v1": Rollout,
        "job.v1": Job,
        "key.v1": Key,
        "opted_out.v1": OptedOut,
        "cursor.v1": Cursor,
        "reward.drift.v1": RewardDrift,
        "receiver.v1": Receiver,
    },
    "manifests": {"policy.manifest.v1": PolicyManifest, "snapshot.manifest.v1": SnapshotManifest},
    "rows": {
        "trajectory.row.v1": TrajectoryRow,
        "pair.row.v1": PairRow,
        "label.row.v1": LabelRow,
        "execution.row.v1": ExecutionRow,
    },
    "files": {"evaluation.task.v1": Task},
    "webhooks": {"notification.v1": Notification},
}
"""By the folder below `schemas`: what is not a message."""
RECORDS = (types.StructType, types.DataclassType)
BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
    "pattern": "pattern",
}
SCALARS = ("string", "number", "integer", "boolean")
NAMES: Mapping[type, Json] = {
    types.DictType: {"type": "object", "additionalProperties": True},
    types.AnyType: {},
    types.BoolType: {"type": "boolean"},
    types.IntType: {"type": "integer"},
    types.FloatType: {"type": "number"},
    types.StrType: {"type": "string"},
    types.DateTimeType: {"type": "string", "format": "date-time"},
    types.BytesType: {"type": "string", "contentEncoding": "base64"},
}


def kinds() -> Mapping[str, Mapping[str, Any]]:
    """Folder -> name of a schema -> its type."""
    topics = decode((CONTRACTS / "topics.json").read_bytes())["topics"]
    messages = {topic["schema"]: MESSAGES[name] for name, topic in topics.items() if "schema" in topic}
    return {"agent-rl": messages, **STORED}


def types_of_schemas() -> Mapping[str, Any]:
    """Name of a schema -> its type."""
    return {name: kind for named in kinds().values() for name, kind in named.items()}


class _Document:
    """One schema while it is made: records that stand in it several times become `$defs`."""

    def __init__(self, name: str, kind: Any, roots: Mapping[type, str]) -> None:
        self._roots = {root: other for root, other in roots.items() if other != name}
        info = types.type_info(kind)
        met = Counter(self._records(info))
        self._shared = {record for record, times in met.items() if times > 1}
        head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"{SCHEMA_ID}{name}"}
        title = {"title": _spoken(info.cls.__name__)} if isinstance(info, RECORDS) else {}
        self.schema = {**head, **title, **(self._record(info) if isinstance(info, RECORDS) else self._of(info))}
        if self._shared:
            made = {record.__name__: self._record(types.type_info(record)) for record in met if record in self._shared}
            text = json.dumps([self.schema, made])
            used = {name: part for name, part in made.items() if f'"#/$defs/{name}"' in text}
            self.schema |= {"$defs": used} if used else {}

    def _records(self, info: types.Type) -> Iterator[type]:
        """Every record in a type as often as it stands there; what is in one is looked at once."""
        seen: set[type] = set()
        waiting = [info]
        while waiting:
            part = waiting.pop(0)
            if isinstance(part, RECORDS):
                if part.cls in self._roots:
                    continue
                yield part.cls
                if part.cls in seen:
                    continue
                seen.add(part.cls)
            waiting += _parts(part)

    def _of(self, info: types.Type, nullable: bool = False) -> Json:
        if isinstance(info, types.Metadata):
            extra = dict(info.extra_json_schema or {})
            opaque, may_be_null = extra.pop("opaque", False), extra.pop("nullable", nullable)
            return NAMES[types.DictType] if opaque else {**self._of(info.type, may_be_null), **extra}
        if isinstance(info, types.UnionType):
            parts = [part for part in info.types if not isinstance(part, types.NoneType)]
            if nullable and len(parts) == 1 and isinstance(parts[0], RECORDS):
                return _or_null(self._record(parts[0]))
            schema = _any_of([self._of(part) for part in parts])
            return _or_null(schema) if nullable else schema
        if isinstance(info, RECORDS):
            if info.cls in self._roots:
                return {"$ref": f"{SCHEMA_ID}{self._roots[info.cls]}"}
            return {"$ref": f"#/$defs/{info.cls.__name__}"} if info.cls in self._shared else self._record(info)
        return self._plain(info)

    def _plain(self, info: types.Type) -> Json:
        match info:
            case types.EnumType():
                return {"type": "string", "enum": [member.value for member in info.cls]}
            case types.ListType() | types.VarTupleType():
                items = self._of(info.item_type)
                return {"type": "array", **({"items": items} if items else {}), **_bounds(info, "Items")}
            case types.DictType():
                values = self._of(info.value_type) or True
                return {"type": "object", "additionalProperties": values, **_bounds(info, "Properties")}
            case _:
                return {**NAMES[type(info)], **_bounds(info, "Length")}

    def _record(self, info: Any) -> Json:
        kind = info.cls
        words, own = member_words(kind), kind.__dict__.get("__doc__")
        properties: dict[str, Json] = {}
        # A record that omits no member writes None as null.
        nullable = isinstance(info, types.DataclassType) or not kind.__struct_config__.omit_defaults
        for field in info.fields:
            schema = self._of(field.type, nullable=nullable)
            if (text := words.get(field.name)) is not None:
                schema = {"description": text, **{key: value for key, value in schema.items() if key != "description"}}
            if field.default not in (msgspec.NODEFAULT, None):
                default = msgspec.to_builtins(field.default)
                schema["default"] = [] if default == () else default
            properties[field.encode_name] = schema
        required = [field.encode_name for field in info.fields if field.required]
        return {
            **({"description": " ".join(inspect.cleandoc(own).split())} if own else {}),
            "type": "object",
            "additionalProperties": False,
            **({"required": required} if required else {}),
            "properties": properties,
            **getattr(kind, "RULES", {}),
        }


def _parts(info: types.Type) -> list[types.Type]:
    match info:
        case types.StructType() | types.DataclassType():
            return [field.type for field in info.fields]
        case types.UnionType():
            return [*info.types]
        case types.ListType() | types.VarTupleType():
            return [info.item_type]
        case types.DictType():
            return [info.value_type]
        case types.Metadata():
            return [info.type]
        case _:
            return []


def _bounds(info: Any, counted: str) -> Json:
    named = {**BOUNDS, "min_length": f"min{counted}", "max_length": f"max{counted}"}
    stated = {keyword: getattr(info, name, None) for name, keyword in named.items()}
    return {keyword: bound for keyword, bound in stated.items() if bound is not None}


def _any_of(parts: list[Json]) -> Json:
    if len(parts) == 1:
        return parts[0]
    scalars = [part["type"] for part in parts if part.keys() == {"type"} and part["type"] in SCALARS]
    return {"type": scalars} if len(scalars) == len(parts) else {"oneOf": parts}


def _or_null(schema: Json) -> Json:
    if "oneOf" in schema:
        return {"oneOf": [*schema["oneOf"], {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]} if "type" in schema else schema


def _spoken(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()


def schema_of(name: str, kind: Any, roots: Mapping[type, str] | None = None) -> Json:
    """The schema of a type; `roots`: other types that have one, which it refers to by their ids."""
    return _Document(name, kind, roots or {}).schema


def schemas() -> Mapping[Path, Json]:
    """File below `contracts/schemas` -> the schema."""
    roots = {kind: name for name, kind in types_of_schemas().items()}
    return {
        Path(folder, f"{name}.schema.json"): schema_of(name, kind, roots)
        for folder, named in kinds().items()
        for name, kind in named.items()
    }


def written(part: Json, indent: int = 0, before: int = 0) -> str:
    """JSON that a person can read: on one line what fits on it."""
    short = json.dumps(part, ensure_ascii=False)
    if indent + before + len(short) < WIDTH or not part or not isinstance(part, (dict, list)):
        return short
    inner = " " * (indent + 2)
    if isinstance(part, list):
        lines = [f"{inner}{written(element, indent + 2)}" for element in part]
        return "[\n" + ",\n".join(lines) + f"\n{' ' * indent}]"
    lines = [f"{inner}{json.dumps(key)}: {written(member, indent + 2, len(key) + 5)}" for key, member in part.items()]
    return "{\n" + ",\n".join(lines) + f"\n{' ' * indent}}}"


def main(arguments: list[str]) -> int:
    """Write, or compare."""
    folder = CONTRACTS / "schemas"
    made = {folder / path: written(schema) + "\n" for path, schema in schemas().items()}
    stale = [path for path, text in made.items() if not path.is_file() or path.read_text() != text]
    stale += [path for path in folder.rglob("*.json") if path not in made]
    for path in stale:
        if "--check" in arguments:
            sys.stderr.write(
                f"{path.relative_to(CONTRACTS.parent)} is out of date: run `python -m tools.contract_schemas`\n"
            )
        elif path in made:
            path.write_text(made[path])
        else:
            path.unlink()
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
