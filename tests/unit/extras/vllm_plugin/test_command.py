"""vLLM's command as the container starts it: the same command, away from hubs unless `RATCHET_HUB` is 1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("hub", "offline"), [("0", "1"), ("1", ""), (None, "1")])
def test_vllm_asks_a_hub_only_when_it_is_switched_on(tmp_path: Path, hub: str | None, offline: str) -> None:
    program = tmp_path / "vllm"
    program.write_text('#!/bin/sh\necho "$HF_HUB_OFFLINE|$*"\nexit 7\n')
    program.chmod(0o755)
    known = {name: value for name, value in os.environ.items() if name not in ("RATCHET_HUB", "HF_HUB_OFFLINE")}
    environment = {**known, "PATH": f"{tmp_path}:{os.environ['PATH']}"} | ({"RATCHET_HUB": hub} if hub else {})
    command = [sys.executable, "-m", "ratchet.extras.vllm_plugin", "serve", "org/base", "--port=8000"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.returncode) == (f"{offline}|serve org/base --port=8000\n", 7), ended.stderr
