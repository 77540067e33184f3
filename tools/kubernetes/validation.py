"""What Kubernetes says against an object: its own schemas, and those of the custom resources that the chart makes."""

from __future__ import annotations

import gzip
import json
from typing import Any, cast

import jsonschema

from tools.kubernetes.manifests import REPOSITORY

SCHEMAS = REPOSITORY / "tests" / "data" / "third_party" / "kubernetes_crds"
CUSTOM = ("scaledobject", "httproute", "rayjob")
KUBERNETES = "1.37"


def third_party_schema(name: str) -> Any:
    """A schema that another project wrote; `Any`: JSON Schema."""
    return json.loads(gzip.decompress((SCHEMAS / f"{name}.json.gz").read_bytes()))


def faults(made: Any) -> list[str]:
    """What is wrong with an object; also a member that no schema names, which Kubernetes would drop."""
    definition = next((each for each in map(third_party_schema, CUSTOM) if each["kind"] == made["kind"]), None)
    if definition is None:
        return _faults_of_kubernetes(made)
    if made["apiVersion"] != definition["apiVersion"]:
        return [f"{made['apiVersion']} is not {definition['apiVersion']}"]
    validator = jsonschema.Draft202012Validator(_closed(definition["schema"]))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(made)]


def _faults_of_kubernetes(made: Any) -> list[str]:
    import kubernetes_validate  # noqa: PLC0415 # pyright: ignore[reportMissingImports] - of `make helm` alone

    try:
        kubernetes_validate.validate(made, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [str(error)]
    return []


def _closed(schema: Any) -> Any:
    """A schema that refuses members which it does not name."""
    if isinstance(schema, list):
        return [_closed(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in cast("dict[str, Any]", schema).items()}
    named = isinstance(closed.get("properties"), dict) and closed.get("type") == "object"
    if named and not closed.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed
