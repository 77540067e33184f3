"""Makes the reports that are due: of a day or week from ClickHouse and the alerts, of a training from its job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime

import msgspec
import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.message import decode
from ratchet.bus.tasks import Lasting
from ratchet.core.contract.notifications import SentReport
from ratchet.core.contract.state import ENDED, JOBS, Job
from ratchet.core.errors import BusUnavailable
from ratchet.core.rules.alert_book import RECENTLY, Noticed
from ratchet.core.rules.job_facts import job_out
from ratchet.core.rules.reports import DAILY, SPANS, Report, daily_report, job_report, weekly_report
from ratchet.core.service.alerts import AlertsFollower
from ratchet.core.service.settings import SharedSettings
from ratchet.notifier.domain.deliveries import Rules
from ratchet.notifier.domain.schedule import DueReport, due_report

log = structlog.get_logger()


class EndedJobs(Lasting):
    """The trainings that ended within the last day, followed in their bucket."""

    def __init__(self, connect: Callable[[], Awaitable[Bus]], now: Callable[[], datetime]) -> None:
        super().__init__()
        self._connect = connect
        self._now = now
        self._jobs: dict[str, Job] = {}

    def of(self, roles: Sequence[str]) -> list[Job]:
        """Those of these roles, or of all where none is named, in the order of their ends."""
        now = self._now()
        self._jobs = {job_id: job for job_id, job in self._jobs.items() if _is_recent(job, now)}
        chosen = (job for job in self._jobs.values() if not roles or job.role in roles)
        return sorted(chosen, key=lambda job: job.finished_at or job.updated_at)

    async def _work(self) -> None:
        async for changes in Bucket(await self._connect(), JOBS, msgspec.Raw).watch():
            now = self._now()
            for job_id, entry in changes:
                self._jobs.pop(job_id, None)
                try:
                    job = decode(entry.value, Job) if entry is not None else None
                except msgspec.DecodeError as error:
                    log.warning("job unreadable", job=job_id, reason=str(error))
                    continue
                if job is not None and _is_recent(job, now):
                    self._jobs[job_id] = job


def _is_recent(job: Job, now: datetime) -> bool:
    return job.state in ENDED and job.finished_at is not None and now - job.finished_at < RECENTLY


class Reports:
    """Makes reports for receivers."""

    def __init__(self, shared: SharedSettings, followed: AlertsFollower, ended: EndedJobs) -> None:
        self._shared = shared
        self._followed = followed
        self._ended = ended

    async def due(self, reported: Mapping[str, datetime], rules: Rules, now: datetime) -> SentReport | None:
        """The next report of a receiver that got these. Raises `Unavailable` without ClickHouse or the broker."""
        roles = rules.roles
        report_due = due_report(reported, rules.reports, self._ended.of(roles), now)
        if report_due is None:
            return None
        job = report_due.job
        if job is not None:
            report = job_report(job_out(job, report_due.until))
        else:
            report = await self._of_time(report_due, roles)
        return SentReport(
            kind=report_due.kind,
            title=report.title,
            since=report.since,
            until=report_due.until,
            markdown=report.markdown(),
            html=report.html(),
            job_id=job.training_job_id if job is not None else None,
        )

    async def _of_time(self, report_due: DueReport, roles: Sequence[str]) -> Report:
        if self._followed.unread is not None:
            raise BusUnavailable(self._followed.unread)
        # Who sends no reports of days needs no ClickHouse, and does not pay for its driver.
        from ratchet.core.stores.report_facts import facts_between  # noqa: PLC0415
        from ratchet.core.stores.warehouse import Warehouse  # noqa: PLC0415

        warehouse = await Warehouse.connect(self._shared)
        try:
            facts = await facts_between(warehouse, report_due.until - SPANS[report_due.kind], report_due.until, roles)
        finally:
            await warehouse.close()
        return daily_report(facts, self._alerts(roles)) if report_due.kind == DAILY else weekly_report(facts)

    def _alerts(self, roles: Sequence[str]) -> list[Noticed]:
        return [noticed for noticed in self._followed.book if not roles or noticed.alert.role in roles]
