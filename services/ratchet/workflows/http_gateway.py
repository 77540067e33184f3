"""The gateway as the workflow service uses it: planners' policies, calls of models, ends of child trajectories."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import structlog

from ratchet.bus.message import JsonObject, decode
from ratchet.core.contract.http.gateway import FetchedBundle
from ratchet.core.contract.roles import DEFAULT_ROLE
from ratchet.core.contract.values import Count
from ratchet.core.contract.workflows import Worker
from ratchet.core.errors import RatchetError, Unavailable
from ratchet.core.service.http_client import TOO_LARGE, AsyncApiClient, Peer, Reply, bearer, error_of
from ratchet.workflows.domain.asking import LARGEST_OUTPUT, Answer, Asked, CallFailed
from ratchet.workflows.domain.results import AGENT, labels_of
from ratchet.workflows.domain.workflow import Workflow

log = structlog.get_logger()

ANSWER_BYTES = 8 * LARGEST_OUTPUT
"""Of an answer: JSON may spell a byte of output in six."""
FETCH_S, END_S = 10.0, 5.0
ENDS = 3
"""Tries to end a child trajectory; one that was not ended is assembled after ten silent minutes."""
RECORD = "x-ratchet-record"
AGAIN = frozenset({408, 409, 429})
"""Refusals that may pass, besides statuses from 500 on."""
FILTERED = "content_filter"
"""Code of a refusal that may have come after the engine had answered, and cost as much."""


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: Count
    completion_tokens: Count


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Message


class _Chat(msgspec.Struct, frozen=True):
    choices: Sequence[_Choice]


class _Used(msgspec.Struct, frozen=True):
    usage: _Usage | None = None


def gateway_peer(url: str, key: str | None) -> Peer:
    """The gateway, as the agent `workflows`."""
    headers = {**bearer(key), "x-ratchet-agent": AGENT}
    return Peer("the gateway", url, headers, FETCH_S, answer_bytes=ANSWER_BYTES)


class HttpGateway:
    """Raises `CallFailed` for a worker that did not do it, and errors of the tree else."""

    def __init__(self, client: AsyncApiClient, pause_s: float = 1.0) -> None:
        """`pause_s`: before the second try to end a child trajectory; doubles."""
        self._client = client
        self._pause_s = pause_s

    async def fetch(
        self, policy: str, workflow_id: str, *, user: str | None, session: str | None
    ) -> tuple[FetchedBundle, bool]:
        """The planner's policy for a workflow, and whether it is recorded. `policy`: a role, or a version of one.

        Draws the arm, the same one whenever it is asked. Raises `NotFound` where the role has no policy.
        """
        asked = {"role": policy, "trajectory": workflow_id, "user": user, "session": session}
        reply = await self._client.exchange("GET", "/v1/bundle", query=asked)
        content = self._client.content_of(reply)
        try:
            return decode(content, FetchedBundle), reply.headers.get(RECORD) != "off"
        except msgspec.DecodeError as error:
            raise Unavailable(f"the gateway's bundle cannot be read: {error}") from error

    async def ask(self, worker: Worker, asked: Asked) -> Answer:
        """Have a model answer, as a trajectory of its own."""
        assert worker.model is not None  # noqa: S101 - the registry holds workers with either
        limits = worker.limits
        system = [{"role": "system", "content": asked.system}] if asked.system else []
        body: JsonObject = {
            "model": _model_of(worker.model),
            "messages": [*system, {"role": "user", "content": asked.text}],
            "max_tokens": limits.max_output_tokens,
            **({"user": asked.user} if asked.user else {}),
            **({"response_format": asked.response_format} if asked.response_format else {}),
        }
        headers = {
            "x-ratchet-trajectory": asked.trajectory_id,
            **({"x-ratchet-session": asked.session} if asked.session else {}),
            **({RECORD: "off"} if asked.unrecorded else {}),
        }
        try:
            reply = await self._client.exchange(
                "POST", "/v1/chat/completions", body=body, headers=headers, timeout_s=limits.timeout_s
            )
        except Unavailable as error:
            raise unanswered(f"{worker.name}: {error}", error) from error
        cost_usd = _cost_of(reply, worker)
        if reply.status != 200:
            again, error = reply.status >= 500 or reply.status in AGAIN, error_of(self._client.peer, reply)
            cost_usd = None if error.code == FILTERED else cost_usd
            raise CallFailed(f"{worker.name}: {error}", again=again, cost_usd=cost_usd)
        return Answer(_text_of(reply, worker, cost_usd), cost_usd, reply.headers.get(RECORD) == "off")

    async def end(self, trajectory_id: str, workflow: Workflow, *, success: bool) -> None:
        """End a child trajectory. A gateway that does not take it is not asked for ever: nothing depends on it."""
        body = {
            "parent_trajectory_id": workflow.workflow_id,
            "outcome": {"status": "success" if success else "failure"},
            "labels": labels_of(workflow),
        }
        headers = {RECORD: "off"} if workflow.unrecorded else {}
        for attempt in range(ENDS):
            if attempt:
                await asyncio.sleep(self._pause_s * 2 ** (attempt - 1))
            try:
                reply = await self._client.exchange(
                    "POST", f"/v1/trajectories/{trajectory_id}/end", body=body, headers=headers, timeout_s=END_S
                )
                self._client.content_of(reply)
            except Unavailable as error:
                log.warning("a child trajectory was not ended", trajectory_id=trajectory_id, reason=str(error))
            except RatchetError as error:  # none of its calls got as far as an engine
                log.info("a child trajectory has no end", trajectory_id=trajectory_id, reason=str(error))
                return
            else:
                return


def unanswered(why: str, error: Unavailable) -> CallFailed:
    """What a call without an answer is. One that sent too much would send it again."""
    return CallFailed(why, again=error.code != TOO_LARGE, cost_usd=None)


def _model_of(name: str) -> str:
    """A model of an upstream is asked in the place of a role's policies: none is drawn, and no statistic counts it."""
    return f"{DEFAULT_ROLE}@{name}" if "/" in name and "@" not in name else name


def _cost_of(reply: Reply, worker: Worker) -> float | None:
    """What a call has cost: a refusal nothing; None: the answer does not say."""
    if 400 <= reply.status < 500:
        return 0.0
    try:
        usage = decode(reply.content, _Used).usage
    except msgspec.DecodeError:
        return None
    if usage is None:
        return None
    return (usage.prompt_tokens + usage.completion_tokens) * worker.cost_per_token


def _text_of(reply: Reply, worker: Worker, cost_usd: float | None) -> str:
    """The text of an answer. Raises `CallFailed` where there is none that can be used."""
    try:
        text = decode(reply.content, _Chat).choices[0].message.content
    except (msgspec.DecodeError, IndexError) as error:
        raise CallFailed(f"{worker.name} answered what is no chat completion", again=True, cost_usd=cost_usd) from error
    return checked_output(worker.name, text, cost_usd)


def checked_output(name: str, text: str | None, cost_usd: float | None) -> str:
    """What a worker wrote. Raises `CallFailed` for nothing, and for too much."""
    if not text or not text.strip():
        raise CallFailed(f"{name} answered nothing", again=True, cost_usd=cost_usd)
    if len(text.encode(errors="replace")) > LARGEST_OUTPUT:
        raise CallFailed(f"{name} answered more than {LARGEST_OUTPUT // 1024} KiB", again=False, cost_usd=cost_usd)
    return text
