"""Any bytes on any subject are a message, or are refused with a reason: there is no third outcome."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ratchet.core.errors import ContractError, InvalidMessage
from ratchet.core.service.contracts import UPGRADES
from tests.support.contract_files import CONTRACTS, SCHEMAS, TOPIC_OF, example, fast, fast_open
from tests.support.hostile import broken_bodies, mutations, nested
from tests.support.schema_values import values

each_schema = pytest.mark.parametrize("name", sorted(SCHEMAS))


def bounded(examples: int) -> settings:
    """The same examples in every run, and as many as the time allows."""
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@cache
def messages(name: str) -> st.SearchStrategy[Any]:
    return values(SCHEMAS[name], SCHEMAS[name]).filter(fast(name).is_valid)


def subjects(name: str) -> list[str]:
    """A subject of the topic for every template."""
    filled = {
        "<role>": "helpdesk",
        "<program>": "console",
        "<pool>": "gpu",
        "<stream>": "RL_TURNS",
        "<reason>": "invalid",
    }
    templates = list(TOPIC_OF[name].subjects)
    for parameter, value in filled.items():
        templates = [template.replace(parameter, value) for template in templates]
    return templates


def refusal(subject: str, body: bytes) -> InvalidMessage | None:
    """Why a body is refused; any other error fails the test."""
    try:
        CONTRACTS.read_as(subject, body, UPGRADES)
    except InvalidMessage as error:
        return error
    return None


@each_schema
@bounded(40)
@given(data=st.data())
def test_a_changed_body_is_a_message_or_refused_by_the_view_that_it_breaks(name: str, data: st.DataObject) -> None:
    document = data.draw(mutations(name))
    body = msgspec.json.encode(document)
    if not fast(name).is_valid(document):
        with pytest.raises(ContractError):
            CONTRACTS.check_strict_json(TOPIC_OF[name].name, body)
    for subject in subjects(name):
        refused = refusal(subject, body)
        assert refused.reason if refused else fast_open(name).is_valid(document)


@each_schema
def test_broken_bytes_are_refused_with_a_reason_or_still_keep_the_schema(name: str) -> None:
    for body in broken_bodies(name, 40):
        for subject in subjects(name):
            refused = refusal(subject, body)
            assert refused.reason if refused else fast_open(name).is_valid(msgspec.json.decode(body))


@each_schema
@bounded(15)
@given(body=st.binary(max_size=64))
def test_arbitrary_bytes_are_never_a_message(name: str, body: bytes) -> None:
    assert all(refusal(subject, body) for subject in subjects(name))


@pytest.mark.parametrize("depth", [300, 2_000, 100_000])
@pytest.mark.parametrize("name", ["trajectory.v1", "alert.v1"])
def test_a_body_that_is_nested_too_deeply_is_refused_at_every_edge(name: str, depth: int) -> None:
    deep = msgspec.json.encode({**example(name), "labels": "HERE"}).replace(b'"HERE"', nested(depth))
    for body in (nested(depth), deep):
        assert all(refusal(subject, body) for subject in subjects(name))
        with pytest.raises(InvalidMessage):
            CONTRACTS.check_strict_json(TOPIC_OF[name].name, body)
