"""`ratchet demo --prompts`: a better prompt is promoted over the agents' own, a harmful one is taken back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]


def test_a_better_prompt_is_promoted_and_a_harmful_one_taken_back(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ratchet.cli", "demo", "--prompts", "--json", "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert [claim for claim in report["claims"] if not claim["holds"]] == [], done.stderr
    verdicts = {policy["name"].partition("-")[0]: policy["verdicts"][-1:] for policy in report["policies"]}
    assert verdicts == {"helpdesk@0": [], "helpdesk@1": ["promote"], "helpdesk@2": ["roll_back"]}
    assert done.returncode == 0
