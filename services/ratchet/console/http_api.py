"""The console's own API: what its pages show beside the answers of coordinator, deployer and gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from ratchet.console import statistics_api, trajectories_api
from ratchet.console.annotation import Annotation
from ratchet.console.calls import Calls
from ratchet.console.domain.visible import alerts_of, drift_of, loop_of
from ratchet.console.events import Events
from ratchet.console.loop import Loop
from ratchet.console.pairs_file import PairsFiles
from ratchet.console.pass_through import BODY_BYTES
from ratchet.console.rollouts import Rollouts
from ratchet.console.tokens import Tokens
from ratchet.console.training import Training
from ratchet.console.trajectories import Trajectories
from ratchet.core.contract.http import console as out
from ratchet.core.rules.access import Caller, KeyScope, RoleSet
from ratchet.core.service.authentication import session_of
from ratchet.core.service.control_api import ControlApi

ERRORS: Mapping[int, str] = {
    422: "A parameter or the body is not what this document says.",
    503: "The broker, ClickHouse or the object store is away.",
}
NO_ROLLOUT: Mapping[int, str] = {404: "No decision of such a rollout is stored."}
NO_JOB: Mapping[int, str] = {404: "There is no such job."}
NO_ROWS: Mapping[int, str] = {404: "There is no such job, or it has no snapshot yet, or that was collected since."}
NO_CARD: Mapping[int, str] = {404: "There is no such job, or it made no policy, or that was collected since."}
NO_LOG: Mapping[int, str] = {404: "There is no such job, or it kept no log, or that was collected since."}
NO_PAIR: Mapping[int, str] = {
    400: "There is no such pair; or one of the headers that are checked comes twice.",
    404: "The answers of the pair cannot be read any more.",
    409: "The answers of the pair have changed since it was shown.",
}
Role = Annotated[str, Field(max_length=64)]
RolloutId = Annotated[str | None, Field(max_length=200, description="By default the role's newest rollout.")]
JobId = Annotated[str, Field(pattern="^[0-9a-fA-F-]{1,64}$")]


@dataclass(frozen=True, kw_only=True)
class Subjects:
    """What the pages are about."""

    loop: Loop
    drift: Callable[[], Awaitable[out.DriftOut]]
    events: Events
    trajectories: Trajectories
    calls: Calls
    tokens: Tokens
    statistics: statistics_api.Statistics
    now: Callable[[], datetime]
    rollouts: Rollouts
    training: Training
    annotation: Annotation
    pairs_files: PairsFiles


def console_api(subjects: Subjects) -> ControlApi:
    """The application with all routes."""
    about = "What the console's pages show. Every error is an ErrorOut."
    api = ControlApi("Ratchet console", about, ERRORS, body_bytes=BODY_BYTES)
    _add_live(api, subjects)
    trajectories_api.add_routes(api, subjects.trajectories, subjects.calls, subjects.tokens)
    statistics_api.add_routes(api, subjects.statistics, subjects.now)
    _add_rollouts(api, subjects.rollouts)
    _add_training(api, subjects.training)
    _add_annotation(api, subjects.annotation, subjects.pairs_files)
    return api


def described_api() -> ControlApi:
    """The application for its document alone: nothing stands behind its routes."""
    unused: dict[str, Any] = dict.fromkeys(Subjects.__dataclass_fields__)
    return console_api(Subjects(**unused))


def _add_live(api: ControlApi, subjects: Subjects) -> None:
    async def session(caller: Caller) -> out.SessionOut:
        """Who the console's user is, and what the key allows for some role."""
        return session_of(caller)

    async def read_loop(roles: RoleSet) -> out.LoopOut:
        """The whole loop at a glance: figures of the last hour, streams, services, roles, and what needs a person. With
        a key for some roles: these roles, what is about them, and the services."""
        return loop_of(await subjects.loop.current(), roles)

    async def read_drift(roles: RoleSet) -> out.DriftOut:
        """What is watched in the rewards of all roles, and which levels have changed."""
        return drift_of(await subjects.drift(), roles)

    async def read_alerts(roles: RoleSet) -> out.AlertsOut:
        """The alerts that hold, and what was sent to which receiver. With a key for some roles: their alerts alone."""
        return alerts_of(await subjects.loop.alerts(), roles)

    async def events(caller: Caller, roles: RoleSet) -> AsyncGenerator[bytes, None]:
        """Server-sent events: `loop` every two seconds, `hint` when something changed. The stream ends after five
        minutes: ask again."""
        return subjects.events.listen(caller.key_id, roles)

    api.route("GET", "/v1/session", session, scope=None)
    api.route("GET", "/v1/loop", read_loop, scope=KeyScope.VIEW)
    api.route("GET", "/v1/drift", read_drift, scope=KeyScope.VIEW)
    api.route("GET", "/v1/alerts", read_alerts, scope=KeyScope.VIEW)
    api.stream("/v1/events", events, scope=KeyScope.VIEW, events={"loop": out.LoopOut, "hint": out.HintOut})


def _add_rollouts(api: ControlApi, rollouts: Rollouts) -> None:
    async def list_past_rollouts(role: Role) -> out.PastRolloutsOut:
        """List a role's rollouts, newest first, each with its last decision."""
        return await rollouts.past(role)

    async def get_rollout_history(role: Role, rollout_id: RolloutId = None) -> out.RolloutHistoryOut:
        """Show every decision of a rollout with the evidence of its moment, oldest first."""
        return await rollouts.history(role, rollout_id)

    async def list_failures(role: Role, rollout_id: RolloutId = None) -> out.FailuresOut:
        """List the trajectories of both arms that went worst in a rollout's time."""
        return await rollouts.failures(role, rollout_id)

    api.route("GET", "/v1/rollouts/{role}/past", list_past_rollouts, scope=KeyScope.VIEW)
    api.route("GET", "/v1/rollouts/{role}/history", get_rollout_history, scope=KeyScope.VIEW, errors=NO_ROLLOUT)
    api.route("GET", "/v1/rollouts/{role}/failures", list_failures, scope=KeyScope.VIEW, errors=NO_ROLLOUT, reads=True)


def _add_training(api: ControlApi, training: Training) -> None:
    async def get_curves(job_id: JobId, roles: RoleSet) -> out.CurvesOut:
        """Show the curves of a job and its attempts, also while it runs."""
        return await training.curves(job_id, roles)

    async def list_rows(
        job_id: JobId,
        roles: RoleSet,
        offset: Annotated[int, Field(ge=0, lt=2**31)] = 0,
        limit: Annotated[int, Field(ge=1, le=100)] = 50,
    ) -> out.RowsOut:
        """List rows of the snapshot that a job learns from, and what was left out, by reason."""
        return await training.rows(job_id, roles, offset, limit)

    async def get_card(job_id: JobId, roles: RoleSet) -> out.CardOut:
        """Show the card that the trainer wrote of the policy that a job made."""
        return await training.card(job_id, roles)

    async def get_log(job_id: JobId, roles: RoleSet) -> out.LogOut:
        """Show what the training process of a job printed, the newest part of it, once the job made a policy."""
        return await training.log(job_id, roles)

    api.route("GET", "/v1/jobs/{job_id}/card", get_card, scope=KeyScope.VIEW, errors=NO_CARD)
    api.route("GET", "/v1/jobs/{job_id}/log", get_log, scope=KeyScope.VIEW, errors=NO_LOG)
    api.route("GET", "/v1/jobs/{job_id}/curves", get_curves, scope=KeyScope.VIEW, errors=NO_JOB)
    api.route("GET", "/v1/jobs/{job_id}/rows", list_rows, scope=KeyScope.VIEW, errors=NO_ROWS, reads=True)


def _add_annotation(api: ControlApi, annotation: Annotation, pairs_files: PairsFiles) -> None:
    async def get_queue(
        caller: Caller,
        roles: RoleSet,
        role: Annotated[str | None, Field(max_length=64)] = None,
        limit: Annotated[int, Field(ge=1, le=200)] = 50,
    ) -> out.QueueOut:
        """List trajectories that the caller has not rated, among the newest 500: most worth rating first."""
        return await annotation.queue(caller, roles, role, limit)

    async def get_pair(caller: Caller, role: Role) -> out.PairsOut:
        """Show the next two answers to one question that the caller has not judged."""
        return await annotation.pair(caller, role)

    async def judge(body: out.JudgementIn, caller: Caller, roles: RoleSet) -> out.JudgementOut:
        """Take the caller's choice between two answers. The same choice twice is one preference."""
        return await annotation.judge(caller, roles, body)

    async def add_preferences(body: out.PairsFileIn) -> out.PairsFileOut:
        """Take the preferences of a file in, as `ratchet preferences add --file` does: those that are new are
        published, and the same file twice changes nothing."""
        return await pairs_files.add(body)

    async def get_agreement(role: Role) -> out.AgreementOut:
        """Show how far the raters of a role agree, and who disagrees with the others more than chance makes."""
        return await annotation.agreement(role)

    annotate = KeyScope.ANNOTATE
    api.route("GET", "/v1/annotation/queue", get_queue, scope=annotate, reads=True)
    api.route("GET", "/v1/annotation/pair", get_pair, scope=annotate, reads=True)
    api.route("POST", "/v1/annotation/judgements", judge, scope=annotate, errors=NO_PAIR)
    api.route("POST", "/v1/annotation/preferences", add_preferences, scope=annotate)
    api.route("GET", "/v1/annotation/agreement", get_agreement, scope=annotate)
