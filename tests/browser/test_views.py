"""Every view opens in light and dark, for keyboards and readers of the page too."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Opening
from tests.support.compose import REPOSITORY
from tests.support.console_changes import REFUNDS
from tests.support.console_training import DPO, RLOO
from tests.support.console_trajectories import IDS
from tests.support.console_workflows import PARTIAL_ID

AXE = REPOSITORY / "services/ratchet/console/web/node_modules/axe-core/axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
VIEWS = {
    "": "Loop",
    "rollouts": "Rollouts",
    "rollouts/support": "Rollout of support",
    "rollouts/triage": "Rollout of triage",
    "policies": "Policies",
    "policies/support/7": "support, version 7",
    "policies/returns/3": "returns, version 3",
    "policies/returns/0": "returns, version 0",
    "policies/compare": "Two policies side by side",
    "trajectories": "Trajectories",
    f"trajectories/{IDS[1]}?role=support": "Trajectory change of address",
    "statistics": "Statistics",
    "statistics?by=agent": "Statistics",
    "annotation": "Annotation",
    "annotation?tab=pairs&role=support": "Annotation",
    "annotation?tab=agreement&role=support": "Annotation",
    "training": "Training",
    f"training/{DPO}": "Job 019a3c5e…0000",
    f"training/{RLOO}?tab=data": "Job 019a3c5e…0001",
    "training?start=1&role=support": "Start a training",
    f"training?one={RLOO}&other={DPO}": "Two jobs",
    "alignment?role=support": "Alignment",
    "changes": "What to change",
    f"changes/support/{REFUNDS}": "Pattern",
    "workflows": "Workflows",
    f"workflows/{PARTIAL_ID}": "Workflow 019ab3f2…2e13",
}
"""Address and heading."""


def violations(page: Page) -> list[str]:
    """What axe finds against WCAG 2.2 AA: the rule, and the first elements that break it."""
    page.evaluate(AXE.read_text())
    problems: list[dict[str, Any]] = page.evaluate(
        "rules => axe.run({runOnly: rules}).then(all => all.violations)", RULES
    )
    return [f"{problem['id']}: {[node['html'][:120] for node in problem['nodes'][:3]]}" for problem in problems]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_opens_and_keeps_wcag_aa(open_view: Opening, view: str, theme: str) -> None:
    page = open_view(view, theme=theme)

    expect(page.get_by_role("heading", level=1)).to_have_text(VIEWS[view])
    expect(page.locator(".loading")).to_have_count(0)
    expect(page.get_by_role("alert")).to_have_count(0)
    assert violations(page) == []


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_fits_a_narrow_window(open_view: Opening, view: str) -> None:
    page = open_view(view, width=400)

    expect(page.locator(".loading")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
