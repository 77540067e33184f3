"""The HTTP route of statistics: what trajectories and calls of a window were like."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta

from pydantic import Field

from ratchet.console.trajectories_api import FilterQuery, Name
from ratchet.core.contract.http.statistics import StatisticsOut
from ratchet.core.rules.access import KeyScope, RoleSet
from ratchet.core.service.control_api import ControlApi
from ratchet.core.stores.statistics import DIMENSIONS, Every, StatisticsQuery

WINDOW = timedelta(days=7)
"""Where no beginning is asked for."""
EARLIEST = datetime.min.replace(tzinfo=UTC)
REFUSED: Mapping[int, str] = {
    400: "The window ends before it begins or has too many buckets, or the names are not one or two different ones."
}

Statistics = Callable[[StatisticsQuery], Awaitable[StatisticsOut]]


class AskedStatistics(FilterQuery):
    """Of what, and grouped by what."""

    by: str | None = Field(
        None, max_length=100, description=f"One or two names with a comma between them: {', '.join(DIMENSIONS)}."
    )
    every: Every | None = Field(
        None, description="Width of a bucket; by default the narrowest with at most 100 of them."
    )
    api: Name | None = Field(None, description="Of calls: chat, responses or messages.")
    key: Name | None = Field(None, description="Id of the key that calls were made with.")

    def query(self, now: datetime, roles: RoleSet) -> StatisticsQuery:
        """As the stores take it: of the last week unless it says otherwise. Raises `BadRequest`."""
        until = self.until or now
        only = {name: str(value) for name in DIMENSIONS if (value := getattr(self, name)) is not None}
        return StatisticsQuery(
            since=self.since or until - min(WINDOW, until - EARLIEST),
            until=until,
            every=self.every,
            by=self.by.split(",") if self.by else (),
            only=only,
            evaluation=self.evaluation,
            within=roles.pattern,
        )


def add_routes(api: ControlApi, statistics: Statistics, now: Callable[[], datetime]) -> None:
    """Serve `/v1/statistics`."""

    async def get_statistics(asked: AskedStatistics, roles: RoleSet) -> StatisticsOut:
        """Sum up the trajectories that ended and the calls that were made in a window of time: by default the last 7
        days. Only the window is read, and at most 50 groups are answered, the others as one."""
        return await statistics(asked.query(now(), roles))

    api.route("GET", "/v1/statistics", get_statistics, scope=KeyScope.VIEW, errors=REFUSED)
