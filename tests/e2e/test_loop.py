"""The loop closes for real: every service as a process, agents with the public client, a small plan."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from ratchet.demo.loop import close_the_loop
from ratchet.demo.plan import SMALL
from ratchet.demo.progress import Progress
from ratchet.demo.report import seconds_to_roll_back


@pytest.mark.timeout(900)
async def test_a_policy_is_promoted_a_bad_one_is_refused_then_rolled_back_and_nothing_is_lost(tmp_path: Path) -> None:
    before = set(psutil.pids())
    progress = Progress()

    ending = await close_the_loop(SMALL, tmp_path, progress)

    happened = "\n".join(note.text for note in progress.notes)
    assert [claim for claim in ending.claims if not claim.holds] == [], happened
    findings, bad = ending.findings, ending.story.bad_version
    assert bad is not None
    good = findings.promoted[-1]
    stages = {policy.version: policy.stage for policy in findings.policies}
    assert (stages[good], stages[bad], stages[1]) == ("stable", "rolled_back", "archived")
    assert findings.route.stable is not None
    assert (findings.route.stable.version, findings.route.canary) == (good, None)
    assert [one.verdict for one in findings.verdicts(bad)] == ["refuse", "start", "roll_back"]
    assert findings.verdicts(bad)[1].actor != "canary_deployer"
    assert all(line.missing == 0 and line.dead == 0 for line in findings.ledger)
    assert {"RL_TURNS", "RL_TRAJECTORIES", "RL_REWARDS"} <= {line.stream for line in findings.ledger}
    took = seconds_to_roll_back(findings, bad)
    assert took is not None
    assert took[0] < SMALL.canary_deadline_s
    assert [child for child in psutil.Process().children(recursive=True) if child.pid not in before] == []
