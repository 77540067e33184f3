"""docs/reports/learning.md is what its data says, of the recipe that the demo has, and the demo claims no more."""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec
import pytest

from ratchet.demo.exams import Proportion
from ratchet.demo.plan import DEMO
from ratchet_helpdesk.heldout import GREEDY
from tools.learning.report import DATA, TABLES, claimed_rises, recipe_of
from tools.learning.tables import METHODS, REJECTION, RLOO, ClaimedRise, Report, draw_tables, safety

ABSOLUTE = re.compile(r"(?<![\w.:/])/\w[\w.-]*/")
"""How a path from the root of a file system begins; a link of the web does not."""
REPORTS = Path(__file__).parents[3] / "docs" / "reports"
REPORT = msgspec.json.decode((REPORTS / DATA).read_bytes(), type=Report)
CLAIMS = pytest.mark.parametrize("claim", claimed_rises(), ids=lambda claim: f"{claim.run} {claim.kinds}")


def test_the_tables_are_drawn_from_the_data() -> None:
    assert (REPORTS / TABLES).read_text() == draw_tables(REPORT, claimed_rises())


def test_the_figures_are_of_the_recipe_that_the_demo_has() -> None:
    assert REPORT.recipe == recipe_of(DEMO)


def test_three_seeds_were_measured_and_at_least_one_beside_rejection_sampling() -> None:
    seeds = {method: {one.seed for one in REPORT.measured if one.method == method} for method in METHODS}
    assert len(seeds[RLOO]) >= 3
    assert seeds[REJECTION] & seeds[RLOO]


@CLAIMS
def test_the_demo_claims_no_larger_rise_than_is_safe(claim: ClaimedRise) -> None:
    assert 0 < claim.least <= safety(REPORT, claim).safe


def test_intervals_of_the_demo_are_apart_whenever_the_rise_is_as_large_as_claimed() -> None:
    assert len(claimed_rises()) == 2
    for claim in claimed_rises():
        tickets = REPORT.measured[0].success(GREEDY, claim.kinds).trials
        for first in range(tickets - math.ceil(claim.least * tickets) + 1):
            last = Proportion(first + math.ceil(claim.least * tickets), tickets)
            assert last.is_above(Proportion(first, tickets))


def test_the_files_name_no_path_of_the_machine_that_made_them() -> None:
    for name in (DATA, TABLES):
        text = (REPORTS / name).read_text()
        assert ABSOLUTE.findall(text) == []
