"""The reference in docs/api, and the coordinator's OpenAPI document, are what the code says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_reference_is_fresh():
    command = [sys.executable, ROOT / "docs" / "generate_api.py", "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_reference_has_every_route_of_the_coordinator():
    document = json.loads((ROOT / "contracts" / "http" / "coordinator.openapi.json").read_text())
    page = (ROOT / "docs" / "api" / "http.md").read_text()
    routes = [f"{verb.upper()} {path}" for path, verbs in document["paths"].items() for verb in verbs]
    assert routes
    assert [route for route in routes if f"### coordinator: {route}\n" not in page] == []
