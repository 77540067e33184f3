"""Gates of bundles: what agents asked for is rendered and asked, engines only where they hold the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
import pytest

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain import gating
from ratchet.canary_deployer.domain.rollout import FAILED, NOT_RUN, PASSED, GateResult
from ratchet.canary_deployer.gates import GATES, OnWeights
from ratchet.canary_deployer.gates.base import (
    UNKNOWN_TIMES,
    Asking,
    BundleTools,
    GateTools,
    LoggedPrompt,
    LoggedPrompts,
)
from ratchet.canary_deployer.http_clients import HttpGateway, gateway_peer
from ratchet.canary_deployer.replicas import Inconclusive
from ratchet.core.contract.bundle import NO_BUNDLE, Bundle, Instructions, ToolTexts
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import NotFound, RatchetError, Rejected, Unavailable
from ratchet.core.rules.bundles import NO_UPSTREAM
from ratchet.core.service.http_client import AsyncApiClient
from tests.support.canary_world import CanaryWorld, FakeGate, policy

GREETING = Bundle(instructions=Instructions(text="Greet {{variables.name}}.", variables=("name",)))
POLITE = Bundle(instructions=Instructions(text="Be polite."))
TOOL: JsonObject = {"type": "function", "function": {"name": "refund"}}


def bundle(version: int) -> PolicyVersion:
    return policy(version, kind="bundle", base_model="openai/small")


def request(number: int, words: int = 1, **changes: Any) -> LoggedPrompt:
    plain: dict[str, Any] = {
        "turn_id": f"turn-{number}",
        "trajectory_id": f"trajectory-{number}",
        "messages": [{"role": "user", "content": "word " * words}],
        "metadata": {"name": "Mia"},
    }
    return LoggedPrompt(**(plain | changes))


@dataclass
class FakeGateway:
    """Refuses by version, and by version and turn."""

    refusals: dict[object, RatchetError] = field(default_factory=dict)
    asked: list[tuple[int, str, JsonObject]] = field(default_factory=list)

    async def ask(self, one: PolicyVersion, prompt: LoggedPrompt, most_tokens: int | None) -> None:
        self.asked.append((one.version, prompt.turn_id, prompt.metadata))
        refusal = self.refusals.get(one.version) or self.refusals.get((one.version, prompt.turn_id))
        if refusal is not None:
            raise refusal


@dataclass
class Given:
    """The tools of gates, with fakes behind them."""

    changes: Bundle = POLITE
    requests: Sequence[LoggedPrompt] = (request(1), request(2, 50), request(3))
    gateway: FakeGateway = field(default_factory=FakeGateway)
    fault: RatchetError | None = None

    def __post_init__(self) -> None:
        self.asking = Asking(self.gateway.ask)

    async def bundle_of(self, _: PolicyVersion) -> Bundle:
        return self.changes

    async def weights_of(self, _: PolicyVersion) -> None:
        return None

    async def recorded(self, role: str, limit: int) -> LoggedPrompts:
        if self.fault is not None:
            raise self.fault
        return LoggedPrompts(prompts=list(self.requests))

    async def check(self, gate: str, *, history: bool = True) -> GateResult:
        tools = BundleTools(self.bundle_of, self.weights_of, self.asking, self.recorded if history else None)
        given = GateTools(
            checks=None,  # type: ignore[arg-type] - no engine is asked
            read_manifest=None,  # type: ignore[arg-type] - and no manifest read
            warmup_prompts=("Hello.", "Bye."),
            approval=False,
            bundles=tools,
        )
        return await GATES[gate](given).check(bundle(2), bundle(1))


async def test_the_longest_recorded_request_is_asked_and_passes() -> None:
    given = Given()
    result = await given.check("render")
    assert (result.outcome, result.evidence["requests"]) == (PASSED, 3)
    assert [(version, turn_id) for version, turn_id, _ in given.gateway.asked] == [(2, "turn-2")]
    assert result.reason.startswith("3 recorded requests are rendered, and turn turn-2, one of the longest")


async def test_a_missing_variable_is_refused_with_the_turn() -> None:
    given = Given(GREETING, [request(1), request(2, metadata={})])
    result = await given.check("render")
    assert (result.outcome, result.reason) == (
        FAILED,
        "turn turn-2: neither `ratchet_variables` nor `metadata` has name, which the policy's instructions need; so it"
        " is with 1 of 2 recorded requests",
    )
    assert given.gateway.asked == []


async def test_a_tool_that_no_recorded_request_offers_is_refused() -> None:
    texts = Bundle(tools={"refund": ToolTexts(description="Pays back."), "refnd": ToolTexts(hidden=True)})
    result = await Given(texts, [request(1), request(2, tools=[TOOL])]).check("render")
    assert (result.outcome, result.reason) == (
        FAILED,
        "none of 2 recorded requests offers the tool refnd: not that of turn turn-1, the newest, either",
    )


async def test_a_context_that_overflows_is_refused_in_the_servers_words() -> None:
    given = Given()
    given.gateway.refusals[2, "turn-2"] = Rejected("at most 8,192 tokens")
    result = await given.check("render")
    assert result.outcome == FAILED
    assert result.reason.endswith("is refused: at most 8,192 tokens")
    assert "turn-2" in result.reason


async def test_what_is_refused_for_stable_too_refuses_no_candidate() -> None:
    given = Given()
    for version in (1, 2):
        given.gateway.refusals[version, "turn-2"] = Rejected("no such picture")
    result = await given.check("render")
    assert result.outcome == PASSED
    assert [turn_id for version, turn_id, _ in given.gateway.asked if version == 2] == ["turn-2", "turn-1"]


@pytest.mark.parametrize("gate", ["render", "warmup"])
async def test_a_provider_that_is_away_makes_the_gate_wait(gate: str) -> None:
    given = Given()
    given.gateway.refusals[2] = Unavailable("the provider answered 503")
    for times in (1, 2, 3):
        with pytest.raises(Inconclusive) as waits:
            await given.check(gate)
        assert waits.value.again_in_s == 2.0 ** (times - 1)
    given.gateway.refusals.clear()
    assert (await given.check(gate)).outcome == PASSED


@pytest.mark.parametrize("gate", ["render", "warmup"])
async def test_a_model_that_no_provider_knows_is_refused_after_tries(gate: str) -> None:
    given = Given()
    given.gateway.refusals[2] = NotFound("The model `smal` does not exist")
    for _ in range(UNKNOWN_TIMES - 1):
        with pytest.raises(Inconclusive):
            await given.check(gate)
    result = await given.check(gate)
    assert result.outcome == FAILED
    assert result.reason.endswith("The model `smal` does not exist")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Given(requests=()), "no request of the last week is recorded"),
        (Given(NO_BUNDLE), "it changes nothing of calls"),
        (Given(fault=Rejected("no such role")), "no such role"),
    ],
)
async def test_without_requests_nothing_is_rendered_in_words(given: Given, words: str) -> None:
    result = await given.check("render")
    assert (result.outcome, result.reason) == (NOT_RUN, f"nothing was rendered: {words}")


async def test_without_a_coordinator_nothing_is_rendered() -> None:
    assert (await Given().check("render", history=False)).outcome == NOT_RUN


async def test_a_history_that_is_away_makes_the_gate_wait() -> None:
    with pytest.raises(Unavailable):
        await Given(fault=Unavailable("the coordinator does not answer")).check("render")


async def test_warmup_of_a_bundle_gives_its_variables_a_value() -> None:
    given = Given(GREETING)
    result = await given.check("warmup")
    assert (result.outcome, result.reason) == (PASSED, "2 prompts answered through the gateway")
    assert [metadata for _, _, metadata in given.gateway.asked] == [{"name": "name"}] * 2


@pytest.mark.parametrize("gate", ["probe", "takes_tools"])
async def test_no_engine_is_asked_about_a_bundle_on_an_upstream(gate: str) -> None:
    assert (await Given().check(gate)).outcome == NOT_RUN


async def test_a_gate_of_weights_gets_the_policy_that_a_bundle_names() -> None:
    async def weights_of(one: PolicyVersion) -> PolicyVersion:
        return msgspec.structs.replace(one, name=f"adapter of {one.name}")

    inner = FakeGate("probe")
    await OnWeights("probe", inner, weights_of).check(bundle(2), bundle(1))
    assert inner.asked == [f"adapter of {bundle(2).name}"]


def test_gates_stand_in_a_table_by_kind() -> None:
    names = [*GATES, "own_gate"]
    compared = ["heldout_tasks", "safety_suite", "shadow_traffic", "approval", "shadow_replay"]
    weights = ["probe", "warmup", "takes_tools", *compared, "own_gate"]
    assert gating.gates_for("adapter", names, first=False) == weights
    assert gating.gates_for("model", names, first=False) == weights
    own = ["probe", "warmup", "takes_tools", "heldout_tasks", "safety_suite", "shadow_traffic", "off_policy"]
    assert gating.gates_for("bundle", names, first=False) == ["render", *own, "approval", "shadow_replay", "own_gate"]
    first = ["render", "probe", "warmup", "takes_tools", "safety_suite", "off_policy"]
    assert gating.gates_for("bundle", names, first=True) == first


def test_render_can_be_waived_and_warmup_cannot() -> None:
    waived = {result.gate for result in gating.waived_results(bundle(2), list(GATES), "ann", "agents bring it")}
    assert "render" in waived
    assert not waived & {"probe", "warmup"}


async def test_a_canary_on_an_upstream_waits_for_no_replica() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.policies.change_version("support", 2, lambda one: msgspec.structs.replace(one, kind="bundle"))
    world.replicas = set()
    await world.until("running")
    for _ in range(3):
        world.clock.advance(20)
        await world.controller.step()
    assert world.controller.watch.fault is None


def answers(status: int, body: JsonObject, policy_name: str) -> tuple[HttpGateway, list[httpx.Request]]:
    """A gateway that always answers this, and what it was asked."""
    asked: list[httpx.Request] = []

    def answer(sent: httpx.Request) -> httpx.Response:
        asked.append(sent)
        return httpx.Response(status, json=body, headers={"x-ratchet-policy": policy_name})

    client = AsyncApiClient(gateway_peer("http://gateway", None), httpx.MockTransport(answer))

    async def bundle_of(_: PolicyVersion) -> Bundle:
        return GREETING

    return HttpGateway(client, bundle_of), asked


async def test_metadata_that_names_people_or_trajectories_is_not_sent() -> None:
    gateway, asked = answers(200, {}, bundle(2).name)
    metadata = {"name": "Mia", "user_id": "u1", "trajectory_id": "t1"}
    await gateway.ask(bundle(2), request(1, metadata=metadata), 16)
    sent = msgspec.json.decode(asked[0].content)
    assert (sent["ratchet_variables"], sent["model"], sent["max_completion_tokens"]) == (
        {"name": "Mia"},
        bundle(2).name,
        16,
    )
    assert asked[0].headers["x-ratchet-trajectory"]


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, Rejected), (413, Rejected), (422, Rejected), (404, NotFound)]
    + [(status, Unavailable) for status in (401, 403, 409, 429, 500, 503)],
)
async def test_an_answers_status_tells_a_refusal_from_a_fault(status: int, error: type[RatchetError]) -> None:
    gateway, _ = answers(status, {"error": {"message": "in its words"}}, bundle(2).name)
    with pytest.raises(error, match="in its words"):
        await gateway.ask(bundle(2), request(1), None)


async def test_an_upstream_that_no_gateway_names_is_a_refusal() -> None:
    gateway, _ = answers(502, {"error": {"message": "no upstream x", "code": NO_UPSTREAM}}, "no policy")
    with pytest.raises(Rejected, match="no upstream x"):
        await gateway.ask(bundle(2), request(1), None)


async def test_another_policys_answer_is_not_the_candidates() -> None:
    gateway, _ = answers(200, {}, bundle(1).name)
    with pytest.raises(Unavailable, match="answered in its place"):
        await gateway.ask(bundle(2), request(1), None)
