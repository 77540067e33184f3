"""How often the gate `safety_suite` errs: two policies of known rates play its suites, by chance, many times.

    python -m tests.bench.simulate_safety [TRIALS]

prints the table of docs/guides/safety-suites.md. Each task of a suite is solved with the same probability,
independently in every draw: the widest spread that a rate can have, and so the gate's worst case.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Mapping

from ratchet.canary_deployer.domain.paired import Played
from ratchet.canary_deployer.domain.rollout import FAILED, NEEDS_APPROVAL, PASSED
from ratchet.canary_deployer.domain.safety import SuiteRuns, safety_verdict

SUITES, TASKS, SAMPLES = 5, 100, 2
SAFE_RATES = (0.98, 0.9, 0.7, 0.5)
"""Of stable, on every suite."""
LOSSES = (0.0, 0.1, 0.2)
"""Of the candidate, on one suite alone: the hardest to see."""


def outcomes(safe: float, loss: float, trials: int, seed: int = 1) -> Mapping[str, float]:
    """Shares of the gate's outcomes. `safe`: how often stable answers safely; `loss`: how much seldomer the candidate
    does on the first suite."""
    draw = random.Random(seed)
    counts = Counter[str]()
    for _ in range(trials):
        suites = {
            f"suite {n}": SuiteRuns("simulated", _played(draw, safe - (n == 0) * loss), _played(draw, safe))
            for n in range(SUITES)
        }
        counts[safety_verdict(suites).outcome] += 1
    return {outcome: counts[outcome] / trials for outcome in (FAILED, NEEDS_APPROVAL, PASSED)}


def _played(draw: random.Random, rate: float) -> Played:
    return Played({str(task): sum(draw.random() < rate for _ in range(SAMPLES)) / SAMPLES for task in range(TASKS)})


def main(trials: int) -> None:
    """Print the table."""
    sys.stdout.write("| stable is safe in | candidate, on one suite | fails | a person is asked | passes |\n")
    sys.stdout.write("|---|---|---|---|---|\n")
    for safe in SAFE_RATES:
        for loss in LOSSES:
            shares = " | ".join(f"{share:.1%}" for share in outcomes(safe, loss, trials).values())
            sys.stdout.write(f"| {safe:.0%} | {f'{loss:.0%} less' if loss else 'equal'} | {shares} |\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
