"""A registry that contradicts itself is refused when it is read, and not at the first message."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from ratchet.bus.contracts import Contracts
from ratchet.bus.registry import covers
from ratchet.errors import ConfigError, UnknownSubject
from tests.support.shop import REGISTRY, SCHEMAS, TYPES

Change = Callable[[Any], object]
TOPIC = next(iter(REGISTRY["topics"]))
STREAM = REGISTRY["topics"][TOPIC]["stream"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda new: new["topics"][TOPIC].update(stream="GONE"), "names streams that are not there: GONE"),
        (lambda new: new["topics"][TOPIC].update(schema="gone.v1"), "names schemas that are not there: gone.v1"),
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
