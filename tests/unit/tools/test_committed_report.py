"""docs/learning.md is what its cells say, of the recipe that the demo has, and the demo claims no more."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from ratchet.core.rules.defaults import DEFAULTS
from ratchet.local.demo.exams import Proportion
from ratchet.local.demo.plan import DEMO, FULL, RANK
from ratchet_helpdesk.heldout import GREEDY
from tools.learning.cells import (
    ALGORITHMS,
    EXPERIMENTS,
    GAMES,
    REJECTION,
    RLOO,
    SEEDS,
    SHORT,
    all_cells,
    is_public,
    read_lines,
    read_results,
)
from tools.learning.public_tables import EARLIER as EXPERIMENTS_BEFORE
from tools.learning.report import CELLS, EARLIER, FOLDER, PAIRS, REPORT, claimed_rises, draw_report
from tools.learning.sweep import SWEEP
from tools.learning.tables import ClaimedRise, safety
from tools.learning.worlds.helpdesk import recipe_of

ABSOLUTE = re.compile(r"(?<![\w.:/])/\w[\w.-]*/")
"""How a path from the root of a file system begins; a link of the web does not."""
ROOT = Path(__file__).parents[3]
EVERY = read_results(ROOT / CELLS)
RESULTS = [one for one in EVERY if not is_public(one)]
ORDER = [str(cell) for cell in all_cells()]
LONGEST_S = 75 * 60
CLAIMS = pytest.mark.parametrize("claim", claimed_rises(), ids=lambda claim: f"{claim.run} {claim.kinds}")


def test_the_report_is_drawn_from_the_cells() -> None:
    assert (ROOT / REPORT).read_text() == draw_report(ROOT)


def test_every_line_is_a_cell_of_its_own() -> None:
    assert [str(result.cell) for result in EVERY] == sorted({str(result.cell) for result in EVERY}, key=ORDER.index)
    assert {path.relative_to(ROOT) for path in (ROOT / FOLDER).iterdir()} == {CELLS, EARLIER, PAIRS, SWEEP}


def test_the_figures_are_of_the_recipe_that_the_demo_has() -> None:
    plans = {SHORT.name: DEMO}
    assert all(result.recipe == recipe_of(plans.get(result.experiment, FULL)) for result in RESULTS)
    assert (SHORT.trajectories, SHORT.variants[0].tries) == (DEMO.tasks * DEMO.tries, DEMO.tries)
    assert ALGORITHMS.trajectories == FULL.tasks * FULL.tries
    assert {variant.tries for variant in ALGORITHMS.variants} == {FULL.tries}


def test_recipes_that_defaults_rest_on_are_those_of_the_cells() -> None:
    for name, row in DEFAULTS.items():
        for one in row.measured:
            section = one.source.partition("#")[2]
            cells = [cell for cell in EVERY if anchor(EXPERIMENTS[cell.experiment].title) == section]
            assert cells, (name, section)
            had = one.recipe
            numbers = {"learning rate": had.learning_rate, "batch": had.batch_size, "passes": had.epochs}
            for cell in cells:
                assert {"rank": RANK, **cell.recipe}.items() >= {**numbers, "rank": had.rank}.items(), (name, section)
                assert one.parameters == (135e6 if is_public(cell) else 0.7e6)


def anchor(title: str) -> str:
    """Of a heading, as GitHub makes it."""
    return title.lower().replace(" ", "-")


def test_what_rl_began_with_on_public_tasks_is_kept() -> None:
    assert {result.experiment for result in read_lines(ROOT / EARLIER)} == {*EXPERIMENTS_BEFORE}


def test_every_cell_is_whole_or_refused_and_took_no_longer_than_it_may() -> None:
    for one in EVERY:
        assert len(one.measured) == 1 + EXPERIMENTS[one.experiment].cycles or one.refused
        assert 0 < (one.processor_s or one.seconds) < LONGEST_S


@pytest.mark.parametrize("name", [ALGORITHMS.name, GAMES.name])
def test_three_seeds_were_measured_beside_rejection_sampling(name: str) -> None:
    compared = [result for result in EVERY if result.experiment == name]
    seeds = {name: {result.seed for result in compared if result.variant == name} for name in (RLOO, REJECTION)}
    assert seeds == {RLOO: {*SEEDS}, REJECTION: {*SEEDS}}


@CLAIMS
def test_the_demo_claims_no_larger_rise_than_is_safe(claim: ClaimedRise) -> None:
    assert 0 < claim.least <= safety(RESULTS, claim).safe


def test_intervals_of_demo_are_apart_whenever_rise_is_as_large_as_claimed() -> None:
    assert len(claimed_rises()) == 4
    for claim in claimed_rises():
        result = next(result for result in RESULTS if result.experiment == claim.experiment.name)
        tickets = result.measured[0].success(GREEDY, claim.kinds).trials
        for first in range(tickets - math.ceil(claim.least * tickets) + 1):
            last = Proportion(first + math.ceil(claim.least * tickets), tickets)
            assert last.is_above(Proportion(first, tickets))


def test_the_files_name_no_path_of_the_machine_that_made_them() -> None:
    for path in (ROOT / REPORT, ROOT / CELLS):
        assert ABSOLUTE.findall(path.read_text()) == []
