"""The HTTP routes of people's opinions: the queue, the next pair, a choice, and the raters' agreement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from ratchet.console.annotation import Annotation
from ratchet.core.contract.http.console import AgreementOut, JudgementIn, JudgementOut, PairsOut, QueueOut
from ratchet.core.rules.access import Caller, KeyScope
from ratchet.core.service.control_api import ControlApi

GONE: Mapping[int, str] = {
    400: "There is no such pair; or one of the headers that are checked comes twice.",
    404: "The answers of the pair cannot be read any more.",
    409: "The answers of the pair have changed since it was shown.",
}
Role = Annotated[str, Field(max_length=64)]


def add_routes(api: ControlApi, annotation: Annotation) -> None:
    """Serve `/v1/annotation`."""

    async def get_queue(
        caller: Caller,
        role: Annotated[str | None, Field(max_length=64)] = None,
        limit: Annotated[int, Field(ge=1, le=200)] = 50,
    ) -> QueueOut:
        """List trajectories that the caller has not rated, among the newest 500: most worth rating first."""
        return await annotation.queue(caller, role, limit)

    async def get_pair(caller: Caller, role: Role) -> PairsOut:
        """Show the next two answers to one question that the caller has not judged."""
        return await annotation.pair(caller, role)

    async def judge(body: JudgementIn, caller: Caller) -> JudgementOut:
        """Take the caller's choice between two answers. The same choice twice is one preference."""
        return await annotation.judge(caller, body)

    async def get_agreement(role: Role) -> AgreementOut:
        """Show how far the raters of a role agree, and who disagrees with the others more than chance makes."""
        return await annotation.agreement(role)

    annotate = KeyScope.ANNOTATE
    api.route("GET", "/v1/annotation/queue", get_queue, scope=annotate)
    api.route("GET", "/v1/annotation/pair", get_pair, scope=annotate)
    api.route("POST", "/v1/annotation/judgements", judge, scope=annotate, errors=GONE)
    api.route("GET", "/v1/annotation/agreement", get_agreement, scope=annotate)
