"""The runbook: each alert's section says what it means, what to look at or do, and how to know that it is over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path("docs/operations.md").read_text()
ALERTS = PAGE.split("## When an alert fires\n", 1)[1].split("\n## ", 1)[0]
SECTIONS = {
    title: body.strip()
    for title, _, body in (section.partition("\n") for section in re.split(r"^### ", ALERTS, flags=re.MULTILINE)[1:])
}


@pytest.mark.parametrize("title", SECTIONS)
def test_section_of_an_alert_ends_with_how_to_know_that_it_is_over(title: str) -> None:
    assert re.match(r"It is over when .+\.$", SECTIONS[title].split("\n\n")[-1], re.DOTALL)


@pytest.mark.parametrize("title", SECTIONS)
def test_section_of_an_alert_has_its_meaning_and_what_to_look_at(title: str) -> None:
    *before, _ = SECTIONS[title].split("\n\n")
    meaning = before[0].partition(". ")[0]
    assert len(meaning.split()) >= 4
    assert re.search(r"`[^`]+`|\]\(|/readyz| log |Grafana", " ".join(before).replace("\n", " "))
