"""A key's limits as `ratchet keys list` shows them."""

from __future__ import annotations

import pytest

from ratchet.cli.keys import limits_of
from ratchet.core.contract.http.keys import LimitsOut


@pytest.mark.parametrize(
    ("limits", "shown"),
    [
        (None, None),
        (LimitsOut(), None),
        (LimitsOut(requests_per_minute=60), "60 requests/min"),
        (LimitsOut(tokens_per_minute=1_500_000, usd_per_day=0.5), "1500000 tokens/min, 0.5 USD/day"),
    ],
)
def test_limits_are_shown_with_their_units(limits: LimitsOut | None, shown: str | None) -> None:
    assert limits_of(limits) == shown
