"""A service with a wrong setting ends with one line and exit code 1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_a_service_with_a_wrong_setting_logs_one_line_and_exits_with_1(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "ratchet.canary_deployer"],
        env={**os.environ, "RATCHET_CANARY_STAGES": "50"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    (line,) = ended.stderr.splitlines()
    assert (ended.returncode, json.loads(line)["event"]) == (1, "cannot run")
    assert "RATCHET_CANARY_*: stage_min_s needs one value" in json.loads(line)["reason"]
