"""The README of every service has the same parts, in the same order: who knows one finds their way in all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SERVICES = Path(__file__).parents[3] / "services" / "ratchet"
PARTS = ["Reads and writes", "What it guarantees", "What a crash does", "Run and test it", "Where things are"]
READMES = {
    path.parent.name: path.parent / "README.md"
    for path in sorted(SERVICES.glob("*/app.py"))
    if (path.parent / "__main__.py").exists()
}


def test_services_are_those_that_run() -> None:
    assert {"gateway", "trajectory_collector", "console"} <= READMES.keys()


@pytest.mark.parametrize("service", READMES)
def test_the_parts_stand_in_order_after_a_short_introduction(service: str) -> None:
    text = READMES[service].read_text()
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert [heading for heading in headings if heading in PARTS] == PARTS
    assert text.startswith(f"# {service}\n\n")
    assert headings[:2] == PARTS[:2]
