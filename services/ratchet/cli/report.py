"""`ratchet report`: what a day or a week brought, what a training came to, what a role learned; Markdown or HTML."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ratchet.bus.message import JsonObject
from ratchet.cli.api import get, segment
from ratchet.cli.connections import alerts_since, settings_of, warehouse_of
from ratchet.cli.endpoints import locate
from ratchet.cli.jobs import find_job
from ratchet.cli.options import HERE, AsJson, Directory, JobArgument, OptionalRole, RoleArgument
from ratchet.cli.output import console, print_answer
from ratchet.cli.patterns import ANALYST
from ratchet.core.contract.http.analyst import LearningReportOut
from ratchet.core.rules.reports import DAILY, SPANS, WEEKLY, Report, daily_report, job_report, weekly_report
from ratchet.core.stores.report_facts import facts_between

if TYPE_CHECKING:
    from ratchet.core.rules.alert_book import Noticed
    from ratchet.core.rules.reports import Facts
    from ratchet.core.service.settings import SharedSettings

app = typer.Typer(no_args_is_help=True)

AsHtml = Annotated[bool, typer.Option("--html", help="As HTML, to mail or to publish.")]


class ReportAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A report, as `--json` prints it."""

    title: str
    since: datetime
    until: datetime
    markdown: str
    html: str
    figures: JsonObject


@app.command()
def daily(
    role: OptionalRole = None, html: AsHtml = False, as_json: AsJson = False, directory: Directory = HERE
) -> None:
    """Print the last 24 hours: trajectories, rewards with their intervals, trainings, policies, rollbacks, alerts.

    The notifier sends the same at 08:00 UTC to receivers with `"reports": ["daily"]`.
    """
    facts, alerts = asyncio.run(_facts_of(settings_of(locate(directory), role), DAILY, role))
    _print(daily_report(facts, alerts), html, as_json)


@app.command()
def weekly(
    role: OptionalRole = None, html: AsHtml = False, as_json: AsJson = False, directory: Directory = HERE
) -> None:
    """Print the last seven days: which policies changed, what that earned with intervals, what was taken back.

    The notifier sends the same on Mondays at 08:00 UTC to receivers with `"reports": ["weekly"]`.
    """
    facts, _ = asyncio.run(_facts_of(settings_of(locate(directory), role), WEEKLY, role))
    _print(weekly_report(facts), html, as_json)


@app.command("job")
def of_job(job: JobArgument, html: AsHtml = False, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Print what a training was asked for, what was measured, with what is bad of it, and what it made.

    The notifier sends the same to receivers with `"reports": ["job"]` when a training has completed or failed.
    """
    _print(job_report(find_job(locate(directory), job)), html, as_json)


@app.command()
def learning(role: RoleArgument, html: AsHtml = False, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Print which plans of the analyst changed a role in the last seven days, what that earned, what was taken back."""
    answer = get(locate(directory), ANALYST, f"/v1/learning/{segment(role)}/report", LearningReportOut)
    _print_text(answer, answer.html if html else answer.markdown, as_json)


async def _facts_of(settings: SharedSettings, kind: str, role: str | None) -> tuple[Facts, list[Noticed]]:
    until = datetime.now(UTC)
    since = until - SPANS[kind]
    async with warehouse_of(settings) as warehouse:
        facts = await facts_between(warehouse, since, until, [role] if role is not None else [])
    if kind != DAILY:
        return facts, []
    book = await alerts_since(settings, since)
    return facts, [noticed for noticed in book if role in (None, noticed.alert.role)]


def _print(report: Report, html: bool, as_json: bool) -> None:
    answer = ReportAnswer(
        title=report.title,
        since=report.since,
        until=report.until,
        markdown=report.markdown(),
        html=report.html(),
        figures=report.figures,
    )
    _print_text(answer, answer.html if html else answer.markdown, as_json)


def _print_text(answer: msgspec.Struct, text: str, as_json: bool) -> None:
    print_answer(answer, as_json, lambda: console.print(text, markup=False, end="", soft_wrap=True))
