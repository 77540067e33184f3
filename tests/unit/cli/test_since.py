"""`--since`: how long ago, or an instant."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
import typer
from hypothesis import given, strategies as st

from ratchet.cli.options import since_of


@pytest.mark.parametrize(("text", "hours"), [("90m", 1.5), ("12h", 12), ("7d", 168), ("2w", 336)])
def test_a_span_counts_from_now(text: str, hours: float) -> None:
    before = datetime.now(UTC)
    since = since_of(text)
    assert before <= since + timedelta(hours=hours) <= datetime.now(UTC)


@pytest.mark.parametrize("text", ["2026-11-20", "2026-11-20T00:00:00", "2026-11-20T01:00:00+01:00"])
def test_an_instant_is_one_of_utc(text: str) -> None:
    assert since_of(text) == datetime(2026, 11, 20, tzinfo=UTC)


@given(st.text() | st.from_regex(r"\d{1,8}[mhdw]", fullmatch=True))
def test_any_other_text_is_refused_as_a_parameter(text: str) -> None:
    with suppress(typer.BadParameter):
        assert since_of(text).tzinfo is UTC
