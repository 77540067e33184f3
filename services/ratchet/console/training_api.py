"""The HTTP routes of a job's curves and of the rows that it learns from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from ratchet.console.training import Training
from ratchet.core.contract.http.console import CardOut, CurvesOut, RowsOut
from ratchet.core.rules.access import KeyScope
from ratchet.core.service.control_api import ControlApi

UNKNOWN: Mapping[int, str] = {404: "There is no such job."}
NO_ROWS: Mapping[int, str] = {404: "There is no such job, or it has no snapshot yet, or that was collected since."}
NO_CARD: Mapping[int, str] = {404: "There is no such job, or it made no policy, or that was collected since."}
JobId = Annotated[str, Field(pattern="^[0-9a-fA-F-]{1,64}$")]


def add_routes(api: ControlApi, training: Training) -> None:
    """Serve `/v1/jobs`."""

    async def get_curves(job_id: JobId) -> CurvesOut:
        """Show the curves of a job and its attempts, also while it runs."""
        return await training.curves(job_id)

    async def list_rows(
        job_id: JobId,
        offset: Annotated[int, Field(ge=0, lt=2**31)] = 0,
        limit: Annotated[int, Field(ge=1, le=100)] = 50,
    ) -> RowsOut:
        """List rows of the snapshot that a job learns from, and what was left out, by reason."""
        return await training.rows(job_id, offset, limit)

    async def get_card(job_id: JobId) -> CardOut:
        """Show the card that the trainer wrote of the policy that a job made."""
        return await training.card(job_id)

    api.route("GET", "/v1/jobs/{job_id}/card", get_card, scope=KeyScope.VIEW, errors=NO_CARD)
    api.route("GET", "/v1/jobs/{job_id}/curves", get_curves, scope=KeyScope.VIEW, errors=UNKNOWN)
    api.route("GET", "/v1/jobs/{job_id}/rows", list_rows, scope=KeyScope.VIEW, errors=NO_ROWS)
