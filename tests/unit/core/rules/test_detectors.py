"""Detectors that a setting adds: those of other packages, and Presidio where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import pytest

from ratchet.core.errors import ConfigError, Rejected
from ratchet.core.rules.redaction import redact
from ratchet.core.rules.redaction.detectors import checked, chosen, rules_digest
from ratchet.core.rules.redaction.finders import Span


def badges(text: str) -> Sequence[Span]:
    place = text.find("EMP-")
    return [(place, place + 10, "badge")] if place >= 0 else []


def test_a_detector_searches_every_text_after_the_rules() -> None:
    value = {"a": ["of EMP-123456, mia@example.com", '{"b": "EMP-654321"}']}
    redacted = redact(value, [badges])
    assert redacted.value == {"a": ["of [REDACTED:badge], [REDACTED:email]", '{"b": "[REDACTED:badge]"}']}
    assert redacted.counts == {"badge": 2, "email": 1}


@pytest.mark.parametrize("spans", [[(0, 99, "badge")], [(3, 3, "badge")], [(0, 2, "Badge!")]])
def test_spans_that_are_none_are_refused(spans: list[Span]) -> None:
    wrong = checked("wrong", lambda _text: spans)
    with pytest.raises(Rejected, match="detector wrong"):
        wrong("some text")


def test_a_name_that_nothing_has_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="no detector presidium; there are: presidio"):
        chosen(["presidium"])


@pytest.mark.skipif(find_spec("presidio_analyzer") is not None, reason="Presidio is installed")
def test_presidio_that_is_not_installed_names_what_to_install() -> None:
    (presidio,) = chosen(["presidio"]).finders
    with pytest.raises(ConfigError, match="ratchet-rl\\[presidio\\]"):
        presidio("some text")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("presidio_analyzer") is None, reason="needs the extra presidio")
def test_presidio_adds_kinds_that_the_rules_leave_alone() -> None:
    text = "from 8.8.8.8 to wallet 1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa"
    assert redact(text, ()).counts == {}
    assert redact(text, chosen(["presidio"]).finders).counts == {"ip_address": 1, "crypto": 1}


def test_the_digest_names_the_rules_of_this_process() -> None:
    assert rules_digest() == rules_digest()
    assert len(rules_digest()) == 16
