"""The servers that the deployer asks over HTTP beside engines: the gateway and the coordinator."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
import uuid_utils

from ratchet.bus.kv import Bucket
from ratchet.bus.message import JsonObject, decode
from ratchet.canary_deployer.gates.base import Blocked, Complete, LoggedPrompt, LoggedPrompts
from ratchet.canary_deployer.settings import ShadowPlan
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.http.models import OutcomeTimesOut, TrajectoryCostsOut
from ratchet.core.contract.http.workflows import ExecutionsOut
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.contract.turn import Sampling
from ratchet.core.contract.workflows import WorkflowExecution
from ratchet.core.errors import NotFound, RatchetError, Rejected, Unavailable
from ratchet.core.evaluation.http_player import model_named
from ratchet.core.judging.spending import DailyLedger
from ratchet.core.rules.bundles import NO_UPSTREAM, VARIABLES
from ratchet.core.rules.call_budget import Amounts
from ratchet.core.service.http_client import WRONG_REQUEST, AsyncApiClient, Peer, Reply, bearer, error_of
from ratchet.core.service.paid_client import PaidClient

AGENT, SHADOW_AGENT, HELDOUT_AGENT, BUNDLE_AGENT = "shadow_replay", "shadow_traffic", "heldout_tasks", "bundle"
"""The gates that ask the gateway, as the captured turns name them."""
ANSWER_S = 120.0
"""How long one answer through the gateway may take."""
OUTCOMES_S = 5.0
"""How long a start waits for the history of outcomes."""
LONGEST_PAID = 4096
"""Tokens that a call reserves money for, where its request sets no limit."""
BLOCKED = "content_filter"
"""Code of a call that the role's filters, or a provider's, block."""
EXECUTIONS, EXECUTIONS_PAGE = 2_000, 50
"""Executions that a planner is judged by, and those of one request for them: one takes 160 KB of memory, as
measured, where it has eight sub-tasks and 25 workers could do each."""
NO_COORDINATOR = "the deployer does not know the coordinator (RATCHET_COORDINATOR_URL)"
PROMPTS_S = 60.0
"""How long a shadow replay waits for its prompts."""


def gateway_peer(url: str, api_key: str | None, agent: str = AGENT) -> Peer:
    """The gateway, as an agent of that name. What keys and limits refuse is no policy's fault, and may pass."""
    errors: dict[int, type[RatchetError]] = dict.fromkeys((401, 403, 409), Unavailable)
    return Peer("the gateway", url, {**bearer(api_key), "x-ratchet-agent": agent}, ANSWER_S, errors)


def coordinator_peer(url: str, api_key: str | None) -> Peer:
    """The coordinator, whose refusals are all `Rejected`."""
    errors = dict.fromkeys(range(400, 500), Rejected)
    refusal = "the coordinator refuses: {reason}"
    return Peer("the coordinator", url, bearer(api_key), errors=errors, refusal=refusal, quotable=False)


class _Choice(msgspec.Struct, frozen=True):
    message: JsonObject


class _Chat(msgspec.Struct, frozen=True):
    choices: Sequence[_Choice]


class HttpGateway:
    """Policies asked through the gateway, by name: their answers are in no statistic and no training."""

    def __init__(
        self,
        client: AsyncApiClient | PaidClient,
        bundle_of: Callable[[PolicyVersion], Awaitable[Bundle]],
        *,
        recorded: bool = True,
    ) -> None:
        """Not `recorded`: the gateway keeps nothing of question and answer."""
        self._client = client
        self._bundle_of = bundle_of
        self._headers = {} if recorded else {"x-ratchet-record": "off"}

    async def complete(self, policy: PolicyVersion, prompt: LoggedPrompt) -> JsonObject:
        """The policy's next message, tool calls included as it wrote them: nothing is called.

        Raises `Rejected` when it does not take the request, `Blocked` when filters do not let it, `Unavailable` when
        the gateway or its engine does not answer.
        """
        sampled = {name: prompt.sampling.get(name) for name in Sampling.__struct_fields__}
        given = {name: value for name, value in sampled.items() if value is not None}
        longest = given.pop("max_tokens", LONGEST_PAID if isinstance(self._client, PaidClient) else None)
        if longest is not None:
            given["max_completion_tokens"] = longest
        reply = await self._exchange(policy, prompt, {**prompt.parameters, **given})
        by = reply.headers.get("x-ratchet-policy", "no policy")
        problem = f"{policy.name} does not answer: {reply.status} by {by}"
        if reply.status in WRONG_REQUEST:
            raise (Blocked if error_of(self._peer, reply).code == BLOCKED else Rejected)(problem)
        if reply.status != 200 or by != policy.name:
            raise Unavailable(problem)
        try:
            return decode(reply.content, _Chat).choices[0].message
        except (msgspec.DecodeError, IndexError) as error:
            raise Rejected(f"the answer holds no message: {error!r}") from error

    async def ask(self, policy: PolicyVersion, prompt: LoggedPrompt, most_tokens: int | None) -> None:
        """See `Ask`."""
        limit = {} if most_tokens is None else {"max_completion_tokens": most_tokens}
        reply = await self._exchange(policy, prompt, limit)
        if reply.status != 200:
            error = error_of(self._peer, reply)
            raise Rejected(str(error)) if error.code == NO_UPSTREAM else error
        by = reply.headers.get("x-ratchet-policy", "no policy")
        if by != policy.name:
            raise Unavailable(f"{by} answered in its place")

    @property
    def _peer(self) -> Peer:
        return self._client.http.peer if isinstance(self._client, PaidClient) else self._client.peer

    async def _exchange(self, policy: PolicyVersion, prompt: LoggedPrompt, members: JsonObject) -> Reply:
        """As a trajectory of its own, with the variables of the policy's instructions: other metadata names people."""
        instructions = (await self._bundle_of(policy)).instructions
        variables = instructions.variables if instructions else ()
        given = {name: prompt.metadata[name] for name in variables if name in prompt.metadata}
        body = {
            "model": policy.name,
            "messages": prompt.messages,
            **({"tools": prompt.tools} if prompt.tools else {}),
            **({VARIABLES: given} if given else {}),
            **members,
        }
        headers = {"x-ratchet-trajectory": str(uuid_utils.uuid7()), **self._headers}
        return await self._client.exchange("POST", "/v1/chat/completions", body=body, headers=headers)


class _Requests(msgspec.Struct, frozen=True, kw_only=True):
    requests: list[LoggedPrompt]
    left_out: dict[str, int] = {}


class HttpCoordinator:
    """The coordinator's history: how long outcomes took, and prompts that a candidate has not learned from.

    Without an address everything is `Unavailable`.
    """

    def __init__(self, client: AsyncApiClient | None) -> None:
        self._client = client

    async def outcome_times(self, policy: PolicyVersion, within_s: float) -> list[float]:
        """Seconds from the start to the first known outcome, of those known within `within_s`.

        Raises `Unavailable`, or `Rejected` with the coordinator's reason.
        """
        path, query = f"/v1/models/{policy.role}/{policy.version}/outcome-times", {"within_s": within_s}
        answer = await self._configured().ask("GET", path, OutcomeTimesOut, query=query, timeout_s=OUTCOMES_S)
        return answer.seconds

    async def trajectory_costs(self, policy: PolicyVersion) -> list[float | None]:
        """What trajectories of the last week cost, US dollars; None where a call has no price.

        Raises as `outcome_times` does.
        """
        path = f"/v1/models/{policy.role}/{policy.version}/costs"
        return (await self._configured().ask("GET", path, TrajectoryCostsOut, timeout_s=OUTCOMES_S)).costs_usd

    async def prompts(self, candidate: PolicyVersion, limit: int) -> LoggedPrompts:
        """At most `limit` prompts that are newer than the candidate's data. Raises as `outcome_times` does."""
        query = {"role": candidate.role, "version": candidate.version, "limit": limit}
        return await self._configured().ask(
            "GET", "/v1/replay/prompts", LoggedPrompts, query=query, timeout_s=PROMPTS_S
        )

    async def requests(self, role: str, limit: int) -> LoggedPrompts:
        """At most `limit` requests of the role's last week, newest first. Raises as `outcome_times` does."""
        path, query = "/v1/replay/requests", {"role": role, "limit": limit}
        answer = await self._configured().ask("GET", path, _Requests, query=query, timeout_s=PROMPTS_S)
        return LoggedPrompts(prompts=answer.requests, left_out=answer.left_out)

    async def executions(self, policy: PolicyVersion, since: datetime) -> list[WorkflowExecution]:
        """The newest workflows that a policy planned, of those since an instant. Raises as `outcome_times` does."""
        if self._client is None:
            raise Rejected(f"no log of executions can be read: {NO_COORDINATOR}")
        kept: deque[WorkflowExecution] = deque(maxlen=EXECUTIONS)
        after: str | None = f"{since.isoformat()}/"
        while after is not None:
            query = {"role": policy.role, "version": policy.version, "after": after, "limit": EXECUTIONS_PAGE}
            page = await self._configured().ask(
                "GET", "/v1/workflows/executions", ExecutionsOut, query=query, timeout_s=PROMPTS_S
            )
            kept += await asyncio.to_thread(msgspec.convert, page.executions, list[WorkflowExecution])
            after = page.next
        return [*kept]

    def _configured(self) -> AsyncApiClient:
        if self._client is None:
            raise Unavailable(NO_COORDINATOR)
        return self._client


@dataclass(frozen=True, slots=True)
class ShadowAsker:
    """Has a candidate answer mirrored calls: unrecorded, within the day's budget of its role."""

    client: AsyncApiClient
    bundle_of: Callable[[PolicyVersion], Awaitable[Bundle]]
    spending: Bucket[Amounts]
    now: Callable[[], datetime]

    async def complete_for(self, candidate: PolicyVersion, plan: ShadowPlan) -> Complete:
        """See `ShadowTools`. Without a budget calls cost what they cost."""
        if plan.usd_per_day is None:
            return HttpGateway(self.client, self.bundle_of, recorded=False).complete
        try:
            model = await model_named(self.client, candidate.name)
        except NotFound as error:
            raise Unavailable(str(error)) from error  # a gateway learns of a new policy within seconds
        if model.prices is None:
            raise Rejected(
                f"usd_per_day is kept by prices, and {model.answered_by or candidate.name} has none: set it in `prices`"
                " of its upstream (RATCHET_GATEWAY_UPSTREAMS), of a policy's engine in RATCHET_GATEWAY_ENGINE_PRICE"
            )
        limit = Amounts(calls=math.inf, tokens=math.inf, usd=plan.usd_per_day)
        ledger = DailyLedger(self.spending, f"shadow_traffic.{candidate.role}", limit, self.now)
        paid = PaidClient(self.client, ledger, model.prices)
        return HttpGateway(paid, self.bundle_of, recorded=False).complete
