"""A registry that contradicts itself is refused when it is read, and not at the first message."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.bus.contracts import Contracts
from ratchet.bus.registry import covers
from ratchet.core.errors import ConfigError, UnknownSubject
from tests.support.shop import REGISTRY, SCHEMAS, TYPES

Change = Callable[[Any], object]
TOPIC = next(iter(REGISTRY["topics"]))
STREAM = REGISTRY["topics"][TOPIC]["stream"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda new: new["topics"][TOPIC].update(stream="GONE"), "names streams that are not there: GONE"),
        (lambda new: new["topics"][TOPIC].update(schema="gone.v1"), "names schemas that are not there: gone.v1"),
        (lambda new: new["topics"][TOPIC].update(summary="gone.v1"), "names schemas that are not there: gone.v1"),
        (lambda new: new["streams"][STREAM].update(max_age=5), f"registry, {STREAM}: unknown members max_age"),
        (lambda new: new["streams"][STREAM].update(retention="work_queue"), "Invalid enum value 'work_queue'"),
        (lambda new: new["streams"][STREAM].pop("subjects"), "missing required field `subjects`"),
        (lambda new: new["topics"].update({"x.v1": new["topics"][TOPIC]}), "no type was given for the topics x.v1"),
        (
            lambda new: new["consumers"].update(x={"service": "x", "stream": STREAM, "topics": ["gone.v1"]}),
            "names topics that are not there: gone.v1",
        ),
        (
            lambda new: new["projections"].update(
                x={"service": "x", "stream": STREAM, "topics": [TOPIC], "bucket": "gone"}
            ),
            "names buckets that are not there: gone",
        ),
        (lambda new: new.update(dead_letters=TOPIC), "`dead_letters` must name the topic of the dead letters"),
    ],
)
def test_a_contradiction_is_refused_with_its_reason(change: Change, reason: str) -> None:
    registry = copy.deepcopy(REGISTRY)
    change(registry)

    with pytest.raises(ConfigError) as refused:
        Contracts(registry, SCHEMAS, TYPES)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("shop.order.v1", "shop.order.v1", True),
        ("shop.order.v1.*", "shop.order.v1.de", True),
        ("shop.order.v1.*", "shop.order.v1.*", True),
        ("shop.order.v1.>", "shop.order.v1.*.*", True),
        ("shop.order.v1.>", "shop.order.v1.>", True),
        (">", "shop.order.v1", True),
        ("shop.order.v1.>", "shop.order.v1", False),
        ("shop.order.v1.*", "shop.order.v1", False),
        ("shop.order.v1.*", "shop.order.v1.de.north", False),
        ("shop.order.v1.*", "shop.order.v1.>", False),
        ("shop.order.v1.de", "shop.order.v1.*", False),
        ("shop.order.v1", "shop.order.v1.de", False),
    ],
)
def test_a_filter_covers_the_subjects_that_it_takes(pattern: str, subject: str, expected: bool) -> None:
    assert covers(pattern, subject) is expected


def test_a_stream_that_does_not_take_the_subjects_of_its_topic_is_refused() -> None:
    streams = {**REGISTRY["streams"], "ORDERS": {**REGISTRY["streams"]["ORDERS"], "subjects": ["shop.order.v1"]}}
    with pytest.raises(ConfigError, match=r"stream ORDERS takes shop\.order\.v1, but not shop\.order\.v1\.\*"):
        Contracts({**REGISTRY, "streams": streams}, SCHEMAS, TYPES)


def test_a_parameter_that_the_registry_does_not_describe_is_refused() -> None:
    with pytest.raises(ConfigError, match="`parameters` of the registry lacks <country>"):
        Contracts({**REGISTRY, "parameters": {}}, SCHEMAS, TYPES)


def test_an_unknown_subject_names_those_of_its_topic() -> None:
    with pytest.raises(UnknownSubject, match=r"its topic has shop\.order\.v1\.<country>"):
        Contracts(REGISTRY, SCHEMAS, TYPES).topic_of("shop.order.v1")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, r"topics\.json cannot be read: .*No such file"),
        ({"topics.json": "{"}, r"topics\.json cannot be read: "),
        ({"topics.json": "[]"}, r"topics\.json holds no JSON object"),
        ({"topics.json": json.dumps({"topics": {"x.v1": {"scheme": "x.v1"}}})}, "unknown members scheme"),
        ({"topics.json": json.dumps(REGISTRY)}, "there is no schema bill.v1"),
        (
            {"topics.json": json.dumps(REGISTRY), "schemas/bill.v1.schema.json": "{"},
            r"bill\.v1\.schema\.json cannot be read",
        ),
    ],
)
def test_contracts_folder_unreadable_names_the_file(tmp_path: Path, files: dict[str, str], reason: str) -> None:
    (tmp_path / "schemas").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=reason):
        Contracts.load(tmp_path, TYPES)


def test_a_schema_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match=r"schema order\.v1: not a JSON Schema"):
        Contracts(REGISTRY, {**SCHEMAS, "order.v1": {"type": "ordr"}}, TYPES)
