"""`ratchet patterns`, `ratchet plans`, `ratchet analyze` and `ratchet report`: what they ask and print."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ratchet.cli.__main__ import main
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.output import least_width
from ratchet.cli.patterns import COLUMNS, row_of
from ratchet.core.contract.http.analyst import (
    AnalysisOut,
    LearningReportOut,
    PatternOut,
    PatternsOut,
    PlanOut,
    PlansOut,
)
from ratchet.core.service.asgi import Answer, Handler, Request, json_response
from ratchet.core.service.problems import HttpError
from tests.support.adaptation import NOW, pattern_of, plan_of
from tests.support.running import listening

PATTERN, PLAN = pattern_of(statement="Refunds fail \x1b[31m40 %."), plan_of()
OTHER = pattern_of(pattern_id="1111" + "2" * 28)
AT_PATTERN, AT_PLAN = f"/v1/patterns/shop/{PATTERN.pattern_id}", f"/v1/plans/shop/{PLAN.plan_id}"
ANALYSIS = AnalysisOut(
    role="shop",
    since=NOW,
    middle=NOW,
    until=NOW,
    trajectories=[10, 12],
    tested=0,
    opened=[],
    known=[],
    closed=[],
    note="too few",
)
REPORT = LearningReportOut(role="shop", since=NOW, until=NOW, markdown="# Week\n", html="<h1>Week</h1>\n", figures={})
ANSWERS = {
    ("GET", "/v1/patterns"): PatternsOut(patterns=[PATTERN, OTHER]),
    ("GET", AT_PATTERN): PatternOut(pattern=PATTERN, plans=[PLAN]),
    ("POST", f"{AT_PATTERN}/dismiss"): PatternOut(pattern=PATTERN, plans=[]),
    ("POST", f"{AT_PATTERN}/reopen"): PatternOut(pattern=PATTERN, plans=[]),
    ("GET", "/v1/plans"): PlansOut(plans=[PLAN]),
    ("GET", AT_PLAN): PlanOut(plan=PLAN, pattern=PATTERN, waits_for="30 canary outcomes more"),
    ("POST", f"{AT_PLAN}/approve"): PlanOut(plan=PLAN, pattern=None),
    ("POST", f"{AT_PLAN}/reject"): PlanOut(plan=PLAN, pattern=None),
    ("POST", "/v1/analyses"): ANALYSIS,
    ("GET", "/v1/learning/shop/report"): REPORT,
}


@pytest.fixture
async def posted(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[tuple[str, dict[str, object]]]]:
    """An analyst; what was posted to it."""
    asked = list[tuple[str, dict[str, object]]]()
    async with analyst(asked) as url:
        monkeypatch.setenv("RATCHET_ANALYST_URL", url)
        yield asked


@asynccontextmanager
async def analyst(asked: list[tuple[str, dict[str, object]]]) -> AsyncIterator[str]:
    def find(method: str, path: str) -> Handler:
        if (method, path) not in ANSWERS:
            raise HttpError(404, path)

        async def answer(request: Request) -> Answer:
            if method == "POST":
                asked.append((path, request.json_object()))
            return json_response(ANSWERS[method, path])

        return answer

    async with listening(find) as url:
        yield url


async def typed(*words: str) -> int:
    return await asyncio.to_thread(main, words)


@pytest.mark.usefixtures("posted")
@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("patterns", "list", "shop"), "Refunds fail"),
        (("patterns", "show", PATTERN.pattern_id), "term is refund"),
        (("plans", "list"), "medium"),
        (("plans", "show", PLAN.plan_id), "30 canary outcomes more"),
        (("plans", "show", PLAN.plan_id[:6]), 'For requests that mention "refund"'),
        (("analyze", "shop"), "too few"),
        (("report", "learning", "shop"), "# Week"),
        (("report", "learning", "shop", "--html"), "<h1>Week</h1>"),
    ],
)
async def test_what_is_known_is_printed(
    words: tuple[str, ...], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await typed(*words) == ExitCode.DONE
    out = capsys.readouterr().out
    assert printed in out
    assert "\x1b[31m" not in out
    assert await typed(*words, "--json") == ExitCode.DONE
    assert isinstance(json.loads(capsys.readouterr().out), dict)


@pytest.mark.parametrize(
    ("words", "path", "body"),
    [
        (("plans", "approve", PLAN.plan_id[:8]), f"{AT_PLAN}/approve", {"reason": None}),
        (("plans", "reject", PLAN.plan_id, "--reason", "no"), f"{AT_PLAN}/reject", {"reason": "no"}),
        (
            ("patterns", "dismiss", PATTERN.pattern_id, "--reason", "known"),
            f"{AT_PATTERN}/dismiss",
            {"reason": "known"},
        ),
        (("patterns", "reopen", PATTERN.pattern_id), f"{AT_PATTERN}/reopen", {"reason": None}),
        (("analyze", "shop"), "/v1/analyses", {"role": "shop"}),
    ],
)
async def test_a_decision_is_sent_unless_it_is_a_dry_run(
    posted: list[tuple[str, dict[str, object]]], words: tuple[str, ...], path: str, body: dict[str, object]
) -> None:
    assert await typed(*words, "--dry-run") == ExitCode.DONE
    assert posted == []
    assert await typed(*words) == ExitCode.DONE
    assert posted == [(path, body)]


@pytest.mark.usefixtures("posted")
@pytest.mark.parametrize(
    ("beginning", "words"), [("1111", "2 patterns begin with 1111"), ("ffff", "there is no pattern ffff")]
)
async def test_an_id_that_names_no_single_pattern_is_refused(
    beginning: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await typed("patterns", "show", beginning) == ExitCode.FAILED
    assert words in capsys.readouterr().err


def test_a_list_of_patterns_of_one_state_fits_into_100_characters() -> None:
    wide = pattern_of(kind="failure_cluster", role="support", reward_cost=1234.5, cost_usd=12.34)
    row = row_of(wide, wide.pattern_id[:8])
    columns = [name for name in COLUMNS if name != "state"]
    assert least_width(columns, [[row[name] for name in columns]]) <= 100
