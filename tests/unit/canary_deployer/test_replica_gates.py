"""The gates that ask every replica: what passes, what refuses a candidate, and what is a replica's own fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
import msgspec
import pytest
from starlette.responses import JSONResponse, Response

from ratchet.canary_deployer.domain.rollout import FAILED, NOT_RUN, PASSED, GateResult
from ratchet.canary_deployer.gates import GATES
from ratchet.canary_deployer.gates.base import Gate, GateTools
from ratchet.canary_deployer.replicas import BREAK_SPACING_S, CONTROL_IDS, Inconclusive, ReplicaChecks
from ratchet.core.contract.policy_manifest import MODEL, PolicyManifest, Probe
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import NotFound, RatchetError, Unavailable
from tests.support.canary_world import policy
from tests.support.scoring_engine import RAW, Answers, Fleet, ScoringEngine, probe, refused

CANDIDATE, STABLE = policy(2).name, policy(1).name


@dataclass
class Manifests:
    """Manifests by version."""

    probes: dict[int, Probe | None] = field(default_factory=lambda: {1: probe(), 2: probe()})
    changes: dict[str, Any] = field(default_factory=lambda: {"dtype": "float32"})
    error: RatchetError | None = None

    async def read(self, one: PolicyVersion) -> PolicyManifest:
        if self.error is not None:
            raise self.error
        plain: dict[str, Any] = {
            "kind": "adapter",
            "base_model": "base",
            "files": [],
            "role": one.role,
            "created_at": datetime(2026, 1, 5, tzinfo=UTC),
            "probe": self.probes[one.version],
        }
        return PolicyManifest(**(plain | self.changes))


@dataclass
class World:
    """Replicas, manifests, and the clock of the checks."""

    fleet: Fleet
    manifests: Manifests = field(default_factory=Manifests)
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    now: float = 1000.0
    gates: dict[str, Gate] = field(default_factory=dict[str, Gate])

    def __post_init__(self) -> None:
        self.checks = ReplicaChecks(self.fleet.served(**self.settings), lambda: self.now)

    async def ask(self, gate: str = "probe", *, stable: bool = True) -> GateResult:
        return await self.gate(gate).check(policy(2), policy(1) if stable else None)

    def gate(self, name: str) -> Gate:
        """The same one each time: it remembers."""
        if name not in self.gates:
            self.gates[name] = GATES[name](self.tools())
        return self.gates[name]

    def tools(self) -> GateTools:
        return GateTools(
            checks=self.checks,
            read_manifest=self.manifests.read,
            warmup_prompts=("hello", "what can you do?"),
            approval=False,
        )

    async def waits(self, gate: str = "probe") -> str:
        """Why the gate has no result yet."""
        with pytest.raises(Unavailable) as caught:
            await self.ask(gate)
        return str(caught.value)


def world(*engines: ScoringEngine, **settings: Any) -> World:
    return World(Fleet(dict(zip("abc", engines, strict=False))), settings=settings)


def for_candidate(answer: Callable[[], Response]) -> Answers:
    """Answers so to every completion of the candidate."""
    return lambda path, body: answer() if body.get("model") == CANDIDATE and "completions" in path else None


def for_everybody(answer: Callable[[], Response]) -> Answers:
    """Answers so to every completion."""
    return lambda path, _: answer() if "completions" in path else None


async def test_the_right_policy_passes_on_every_replica_and_stable_is_there_too() -> None:
    here = world(ScoringEngine(), ScoringEngine())
    result = await here.ask()
    assert result.outcome == PASSED
    assert result.reason.startswith("its log-probabilities on the probe match on 2 of 2 replicas: ")
    assert result.reason.endswith("over 4 tokens; at temperature 2 log-probabilities are the processed ones")
    assert result.evidence["compared"]
    assert result.evidence["allowed"] == {"mean": 5e-4, "worst": 1e-3}
    for name in ("small at http://a", "small at http://b"):
        figures = result.evidence["replicas"][name]
        assert figures == figures | {"tokens": 4, "plays": 3, "logprobs_mode": "processed_logprobs", "not_checked": []}
        assert figures["worst"] < 1e-9
    for engine in here.fleet.engines.values():
        assert sorted(engine.resident) == [STABLE, CANDIDATE]
    msgspec.json.encode(result)


async def test_another_policys_weights_fail_with_the_numbers() -> None:
    here = world(*(ScoringEngine(weights={CANDIDATE: 7}) for _ in range(2)))
    result = await here.ask()
    assert (result.outcome, result.evidence["compared"]) == (FAILED, True)
    for host in "ab":
        assert f"small at http://{host}: log-probabilities on the probe differ by " in result.reason
    assert result.reason.endswith("in float32 0.0005 and 0.001 are allowed")


async def test_the_tolerance_is_that_of_the_number_format() -> None:
    near = probe()
    moved = msgspec.structs.replace(near, logprobs=[value - 0.02 for value in near.logprobs])
    for dtype, outcome in (("bfloat16", PASSED), ("float32", FAILED), (None, PASSED)):
        here = world(ScoringEngine())
        here.manifests = Manifests({1: probe(), 2: moved}, {"dtype": dtype})
        assert (await here.ask()).outcome == outcome


@pytest.mark.parametrize("stable", [None, "without a probe", "as near"])
async def test_engine_in_a_coarser_number_format_than_the_trainers_is_at_fault(stable: str | None) -> None:
    near = probe()
    moved = msgspec.structs.replace(near, logprobs=[value - 0.02 for value in near.logprobs])
    here = world(ScoringEngine())
    here.manifests = Manifests({1: moved if stable == "as near" else None, 2: moved})
    for _ in range(3):
        with pytest.raises(
            Unavailable, match=r"computes in another number format than the trainer .*in float32"
        ) as caught:
            await here.ask(stable=stable is not None)
        assert "small at http://a: log-probabilities on the probe differ by 0.02 nats" in str(caught.value)


async def test_one_replica_with_other_weights_is_at_fault_and_not_the_policy() -> None:
    here = world(ScoringEngine(), ScoringEngine(weights={CANDIDATE: 7}))
    waiting = await here.waits()
    assert waiting.startswith("small at http://b: log-probabilities on the probe differ by ")
    assert "http://a" not in waiting
    assert "end or repair the ones named here" in waiting


async def test_engine_whose_base_was_exchanged_refuses_no_candidate() -> None:
    here = world(ScoringEngine(weights={CANDIDATE: 7, STABLE: 7}))
    assert "was the engine's base model or number format exchanged?" in await here.waits()


def errs_in(engine: ScoringEngine, wrong: Callable[[int], bool]) -> ScoringEngine:
    """Scores the candidate's prompts with other weights in those of its answers, counted from 1."""
    scored = 0

    def answers(path: str, body: dict[str, Any]) -> None:
        nonlocal scored
        if body.get("model") == CANDIDATE and "prompt_logprobs" in body:
            scored += 1
            engine.weights[CANDIDATE] = 7 if wrong(scored) else 0

    engine.answers = answers
    return engine


async def test_a_replica_whose_answers_differ_now_and_then_is_at_fault() -> None:
    waiting = await world(errs_in(ScoringEngine(), lambda count: count == 2)).waits()
    assert waiting.startswith("small at http://a: log-probabilities on the probe differ by ")
    assert "but not always" in waiting


async def test_a_replica_that_was_at_fault_has_more_to_show_the_next_time() -> None:
    """Else a replica that errs in every fifth answer would pass by chance when it is asked again."""
    engine = errs_in(ScoringEngine(), lambda count: count % 5 == 2)
    here = world(engine)
    for _ in range(9):
        await here.waits()
    engine.answers = None
    engine.weights.clear()
    result = await here.ask()
    assert (result.outcome, result.evidence["replicas"]["small at http://a"]["plays"]) == (PASSED, 96)


async def test_a_role_that_no_engine_serves_waits() -> None:
    assert (await world(ScoringEngine(), roles=("sales",)).waits()).startswith("no engine serves the role support")


async def test_without_a_probe_the_reason_is_that_nothing_was_compared() -> None:
    here = world(ScoringEngine())
    here.manifests = Manifests({1: None, 2: None})
    result = await here.ask()
    assert (result.outcome, result.evidence["compared"]) == (NOT_RUN, False)
    assert result.reason == (
        "the manifest has no probe: no log-probabilities were compared; at temperature 2 log-probabilities are the "
        "processed ones"
    )


async def test_an_engine_that_scores_no_prompts_claims_nothing() -> None:
    plain = ScoringEngine(answers=for_candidate(lambda: JSONResponse({"choices": [{"text": "x"}]})))
    result = await world(plain).ask()
    assert (result.outcome, result.evidence["compared"]) == (NOT_RUN, False)
    assert result.reason == (
        "no log-probabilities were compared; small at http://a: not checked: its log-probabilities: the engine scores "
        "no prompts (prompt_logprobs), its log-probabilities at another temperature"
    )


async def test_an_engine_that_names_no_candidates_is_compared_all_the_same() -> None:
    result = await world(ScoringEngine(max_logprobs=0)).ask()
    assert (result.outcome, result.evidence["compared"]) == (PASSED, True)
    assert "not checked: log-probabilities at temperature 2: the engine names no candidates" in result.reason


async def test_raw_log_probabilities_are_detected() -> None:
    here = world(ScoringEngine(), ScoringEngine(logprobs_mode=RAW))
    waiting = await here.waits()
    assert waiting == (
        "small at http://b: at temperature 2 log-probabilities are raw: calls at another temperature than 1 train "
        "nothing, where settings say processed_logprobs: start it with --logprobs-mode processed_logprobs, or correct "
        "logprobs_mode in RATCHET_ENGINES, or RATCHET_ENGINE_LOGPROBS_MODE"
    )
    for settings in ({"logprobs_mode": RAW}, {"logprobs_mode": None}):
        result = await world(ScoringEngine(logprobs_mode=RAW), **settings).ask()
        assert result.outcome == PASSED
        assert "at temperature 2 log-probabilities are raw" in result.reason


async def test_a_temperature_that_does_something_else_is_named() -> None:
    def odd(path: str, body: dict[str, Any]) -> None:
        if body.get("logprobs"):
            body["temperature"] = 5.0

    result = await world(ScoringEngine(answers=odd), logprobs_mode=None).ask()
    assert "at temperature 2 log-probabilities are neither processed nor raw" in result.reason


async def test_a_flat_model_leaves_the_temperature_unchecked() -> None:
    def flat(path: str, body: dict[str, Any]) -> Response | None:
        if not body.get("prompt_logprobs"):
            return None
        ids = body["prompt"]
        values = [None, *({str(token): {"logprob": -3.0}, "30": {"logprob": -3.001}} for token in ids[1:])]
        return JSONResponse({"choices": [{"prompt_logprobs": values}]})

    here = world(ScoringEngine(answers=flat))
    here.manifests = Manifests({1: None, 2: msgspec.structs.replace(probe(), logprobs=[-3.0] * 4)})
    result = await here.ask()
    assert result.outcome == PASSED
    assert "candidates are at most 0.001 nats apart, too few to tell" in result.reason


def scores(value: float | None, *, every_model: bool = False, only: int | None = None) -> Answers:
    """Gives each token of a prompt this log-probability: always, or in that answer alone, counted from 1."""
    answered = 0

    def odd(path: str, body: dict[str, Any]) -> Response | None:
        nonlocal answered
        if "prompt_logprobs" not in body or not (every_model or body["model"] == CANDIDATE):
            return None
        answered += 1
        values = [None, *({str(token): {"logprob": value}} for token in body["prompt"][1:])]
        return JSONResponse({"choices": [{"prompt_logprobs": values}]}) if only in (None, answered) else None

    return odd


@pytest.mark.parametrize("probed", [True, False])
async def test_values_that_are_not_finite_in_every_answer_fail(probed: bool) -> None:
    here = world(ScoringEngine(answers=scores(None)))
    here.manifests.probes[1] = probe() if probed else None
    result = await here.ask()
    assert result.outcome == FAILED
    assert "log-probability of token 0 of the probe is not finite" in result.reason


@pytest.mark.parametrize("probed", [True, False])
async def test_an_engine_whose_values_are_not_finite_now_and_then_is_at_fault(probed: bool) -> None:
    here = world(ScoringEngine(answers=scores(None, only=2)))
    here.manifests.probes[2] = probe() if probed else None
    waiting = await here.waits()
    assert waiting.startswith(
        "small at http://a: log-probability of token 0 of the probe is not finite; but not always"
    )


@pytest.mark.parametrize("stable", [True, False])
async def test_values_above_0_are_the_engines_fault(stable: bool) -> None:
    with pytest.raises(Unavailable, match="http://a: values above 0 are no log-probabilities: start it with"):
        await world(ScoringEngine(answers=scores(4.0))).ask(stable=stable)


async def test_engine_that_gives_no_values_for_any_policy_is_at_fault() -> None:
    here = world(ScoringEngine(answers=scores(None, every_model=True)))
    here.manifests.probes[1] = None
    assert f"and so it is with {STABLE}, which serves the role" in await here.waits()


async def test_servers_behind_one_address_that_differ_in_ability_pass_nothing() -> None:
    """The first answer shows other weights, the next one scores nothing: that proves nothing in the policy's favour."""
    plain = JSONResponse({"choices": [{"text": "x"}]})
    engine = ScoringEngine(weights={CANDIDATE: 7})
    scored = 0

    def later(path: str, body: dict[str, Any]) -> Response | None:
        nonlocal scored
        scored += body.get("model") == CANDIDATE and "prompt_logprobs" in body
        return plain if scored > 1 else None

    engine.answers = later
    assert "small at http://a scores some prompts and not others" in await world(engine).waits()


async def test_a_refusal_in_the_engines_words_fails_the_gate_with_these_words() -> None:
    here = world(ScoringEngine(broken={CANDIDATE}), ScoringEngine(broken={CANDIDATE}))
    here.fleet.engines["c"] = ScoringEngine()
    here = World(here.fleet)
    here.fleet.away.add("c")
    words = "; ".join(f"small at http://{host}: sha256 of the files of {CANDIDATE} differs" for host in "ab")
    result = await here.ask()
    assert (result.outcome, result.reason) == (FAILED, f"the engine cannot serve it: {words}")
    result = await here.ask("warmup")
    assert (result.outcome, result.reason) == (FAILED, f"it does not answer as it should: {words}")


@pytest.mark.parametrize("gate", ["probe", "warmup"])
async def test_refusal_of_one_replica_is_its_own_fault_while_another_serves(gate: str) -> None:
    here = world(ScoringEngine(), ScoringEngine(broken={CANDIDATE}))
    for _ in range(9):
        here.now += 100
        assert await here.waits(gate) == (
            f"small at http://b: sha256 of the files of {CANDIDATE} differs; but not on every replica: end or repair "
            "the ones named here, and compare their base model and options with those of the others"
        )


async def test_a_policy_that_breaks_one_replica_only_waits() -> None:
    broken = ScoringEngine(resident=[CANDIDATE], answers=for_candidate(lambda: refused(500, "NaN")))
    here = world(ScoringEngine(), broken)
    for _ in range(9):
        waiting = await here.waits()
        here.now += BREAK_SPACING_S
    assert "9 times" in waiting
    assert "but not on every replica" in waiting


@pytest.mark.parametrize(
    ("gate", "path", "fault"),
    [
        ("probe", "/v1/completions", refused(400, "This model's maximum context length is 8 tokens.")),
        ("probe", "/v1/completions", refused(500, "CUDA out of memory")),
        ("warmup", "/v1/chat/completions", refused(400, "a chat template is required")),
        ("warmup", "/v1/chat/completions", refused(500, "CUDA out of memory")),
    ],
)
async def test_what_an_engine_cannot_do_for_stable_either_refuses_no_candidate(
    gate: str, path: str, fault: Response
) -> None:
    """The engine answers short prompts all the while."""

    def long(asked: str, body: dict[str, Any]) -> Response | None:
        return fault if asked == path and len(body.get("prompt", [0] * 9)) > len(CONTROL_IDS) else None

    here = world(ScoringEngine(resident=[CANDIDATE], answers=long))
    for _ in range(9):
        here.now += 100
        waiting = await here.waits(gate)
        assert STABLE in waiting
        assert "which serves the role" in waiting


async def test_an_engine_that_is_too_slow_under_load_refuses_no_candidate() -> None:
    class Loaded(Fleet):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if b'prompt_logprobs":20' in request.read():
                raise httpx.ReadTimeout("late")
            return await super().handle_async_request(request)

    here = World(Loaded({"a": ScoringEngine(resident=[CANDIDATE])}))
    for _ in range(9):
        here.now += 100
        assert f"so it is with {STABLE}, which serves the role" in await here.waits()


async def test_a_replica_that_refuses_stable_too_is_at_fault() -> None:
    waiting = await world(ScoringEngine(broken={CANDIDATE, STABLE})).waits()
    assert waiting.startswith(f"small at http://a refuses {STABLE} too, which serves the role: sha256 of")


async def test_a_first_policy_that_is_refused_fails() -> None:
    result = await world(ScoringEngine(broken={CANDIDATE})).ask(stable=False)
    assert result.outcome == FAILED


async def test_a_replica_that_is_away_is_named_and_does_not_block() -> None:
    here = world(ScoringEngine(), ScoringEngine())
    here.fleet.away.add("b")
    for gate in ("probe", "warmup"):
        result = await here.ask(gate)
        assert (result.outcome, result.evidence["away"]) == (PASSED, ["small at http://b"])
    reason = (await here.ask()).reason
    assert "match on 1 of 2 replicas" in reason
    assert reason.endswith("not checked, for they are away: small at http://b")
    here.fleet.away.add("a")
    waiting = await here.waits()
    assert waiting.startswith("no replica answers: small at http://a does not answer at http://a")
    assert waiting.endswith("start one, or correct RATCHET_ENGINES")


async def test_faults_of_a_replica_are_never_the_policys() -> None:
    faults = [refused(401, "key"), refused(404, "none"), refused(429, "busy"), JSONResponse("page")]
    for fault in faults:
        here = world(ScoringEngine(), ScoringEngine(answers=for_candidate(lambda fault=fault: fault)))
        for _ in range(9):
            here.now += 100
            assert "small at http://b" in await here.waits()


async def test_a_policy_that_an_engine_does_not_find_although_it_is_stored_waits() -> None:
    waiting = await world(ScoringEngine(missing={CANDIDATE})).waits()
    assert waiting.startswith(f"small at http://a does not find {CANDIDATE} (404): does it run with Ratchet's plugin")


@pytest.mark.parametrize("gate", ["probe", "warmup"])
async def test_a_policy_that_breaks_an_engine_again_and_again_is_refused(gate: str) -> None:
    here = world(ScoringEngine(resident=[CANDIDATE], answers=for_candidate(lambda: refused(500, "NaN"))))
    for count in (1, 2):
        assert f"time {count} of 3 before the policy is refused" in await here.waits(gate)
        here.now += BREAK_SPACING_S
    result = await here.ask(gate)
    assert result.outcome == FAILED
    assert f"answers 500 for {CANDIDATE}; its log says why; 3 times, each time right after it answered" in result.reason


async def test_breaks_in_quick_succession_count_once() -> None:
    here = world(ScoringEngine(resident=[CANDIDATE], answers=for_candidate(lambda: refused(500, "short fault"))))
    for _ in range(9):
        here.now += 1
        assert "time 1 of 3" in await here.waits()
    here.fleet.engines["a"].answers = None
    assert (await here.ask()).outcome == PASSED


async def test_a_policy_that_an_engine_could_not_fetch_is_not_to_blame() -> None:
    """The object store may be away for the engine alone: it holds nothing of the policy, and answers 500."""
    here = world(ScoringEngine(answers=for_candidate(lambda: refused(500, "no store"))))
    for _ in range(9):
        here.now += 100
        assert "before the policy is refused" not in await here.waits()


@dataclass
class Ending(Fleet):
    """A fleet whose replica ends over requests that hold these bytes; `gone`: it then refuses connections."""

    over: bytes = b'"model":"' + CANDIDATE.encode()
    gone: bool = True

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.over in request.read() and not self.away:
            self.away |= {"a"} if self.gone else set()
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        return await super().handle_async_request(request)


@pytest.mark.parametrize("gone", [False, True])
async def test_a_policy_that_ends_the_engine_each_time_is_refused(gone: bool) -> None:
    here = World(Ending({"a": ScoringEngine()}, gone=gone))
    for _ in range(2):
        waiting = await here.waits()
        assert "does not finish an answer for" in waiting
        assert "before the policy is refused" in waiting
        here.fleet.away.clear()
        here.now += 60
    assert (await here.ask()).outcome == FAILED


async def test_engine_that_ends_over_the_question_refuses_no_candidate() -> None:
    """After the end it refuses connections, so stable is asked the same before the candidate is again."""
    here = World(Ending({"a": ScoringEngine()}, over=b'prompt_logprobs":20'))
    for _ in range(9):
        assert "does not finish an answer for" in await here.waits()
        here.fleet.away.clear()
        here.now += 60


async def test_breaks_with_answers_between_them_count_once() -> None:
    here = world(*(ScoringEngine(resident=[CANDIDATE]) for _ in range(2)))
    for number in range(9):
        for place, engine in enumerate(here.fleet.engines.values()):
            engine.answers = for_candidate(lambda: refused(500, "now and then")) if number % 2 == place else None
        assert "time 1 of 3" in await here.waits()
        here.now += BREAK_SPACING_S


async def test_doubts_are_ever_longer_apart_up_to_a_minute() -> None:
    here = world(ScoringEngine(), ScoringEngine(weights={CANDIDATE: 7}))
    pauses: list[float] = []
    for _ in range(9):
        with pytest.raises(Inconclusive) as caught:
            await here.ask()
        pauses.append(caught.value.again_in_s)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


async def test_a_replica_that_breaks_for_stable_as_well_blames_nobody() -> None:
    here = world(
        ScoringEngine(resident=[CANDIDATE], answers=lambda path, _: refused(500, "") if "comp" in path else None)
    )
    for _ in range(9):
        here.now += 100
        assert f"answers 500 for {STABLE}" in await here.waits()


@pytest.mark.parametrize(
    "answers",
    [
        for_candidate(lambda: refused(503, "a private matter")),
        for_candidate(lambda: refused(424, "a private matter")),
        for_everybody(lambda: refused(503, "a private matter")),
        for_everybody(lambda: refused(424, "a private matter")),
    ],
    ids=["busy", "refusing", "busy for stable too", "refusing stable too"],
)
async def test_a_doubt_that_repeats_an_engines_words_keeps_them_from_logs(answers: Answers) -> None:
    here = world(ScoringEngine(), ScoringEngine(answers=answers))
    with pytest.raises(Inconclusive, match="a private matter") as caught:
        await here.ask()
    assert "private" not in caught.value.for_log


async def test_a_whole_model_is_refused_where_only_adapters_are_held() -> None:
    here = world(ScoringEngine())
    here.manifests.changes["kind"] = MODEL
    result = await here.ask()
    assert result.outcome == FAILED
    assert "it is a whole model, and small at http://a (vllm) holds adapters" in result.reason
    here = World(here.fleet, here.manifests, {"kind": "engine_local"})
    assert (await here.ask()).outcome == PASSED


@pytest.mark.parametrize(
    "damaged",
    [
        Probe(prompt_token_ids=[1], output_token_ids=[2, 3], logprobs=[-1.0]),
        Probe(prompt_token_ids=[], output_token_ids=[2], logprobs=[-1.0]),
        Probe(prompt_token_ids=[1], output_token_ids=[2], logprobs=[float("nan")]),
    ],
)
async def test_a_damaged_probe_fails(damaged: Probe) -> None:
    here = world(ScoringEngine())
    here.manifests.probes[2] = damaged
    result = await here.ask()
    assert result.outcome == FAILED
    assert "the manifest's probe has " in result.reason


async def test_a_manifest_that_is_gone_fails_and_a_store_that_is_away_waits() -> None:
    here = world(ScoringEngine())
    here.manifests.error = NotFound("no object s3://ratchet/policies/2.json")
    result = await here.ask()
    assert (result.outcome, result.reason) == (
        FAILED,
        "the engine cannot serve it: no object s3://ratchet/policies/2.json",
    )
    here.manifests.error = Unavailable("the object store does not answer")
    assert await here.waits() == "the object store does not answer"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([{"logprob": -1.0}, {"logprob": None}], "broken output on prompt 1: log-probability of token 1 is not finite"),
        ([], "broken output on prompt 1: no tokens"),
    ],
)
async def test_broken_output_fails_the_warmup(content: list[Any], reason: str) -> None:
    answer = {"choices": [{"logprobs": {"content": content}}]}
    result = await world(ScoringEngine(answers=for_candidate(lambda: JSONResponse(answer)))).ask("warmup")
    assert (result.outcome, result.reason) == (FAILED, f"it does not answer as it should: small at http://a: {reason}")


BROKEN = {"choices": [{"logprobs": {"content": [{"logprob": None}]}}]}


async def test_broken_output_of_one_replica_is_its_own_fault() -> None:
    waiting = await world(ScoringEngine(), ScoringEngine(answers=for_candidate(lambda: JSONResponse(BROKEN)))).waits(
        "warmup"
    )
    assert waiting.startswith(
        "small at http://b: broken output on prompt 1: log-probability of token 0 is not finite; "
    )
    assert "but not on every replica" in waiting


async def test_broken_output_of_stable_too_is_the_engines_fault() -> None:
    engine = ScoringEngine(answers=lambda path, _: JSONResponse(BROKEN) if "chat" in path else None)
    assert f"refuses {STABLE} too, which serves the role: broken output on prompt 1" in await world(engine).waits(
        "warmup"
    )


async def test_output_that_is_broken_now_and_then_is_the_engines_fault() -> None:
    answers = iter([BROKEN])
    engine = ScoringEngine(
        answers=lambda path, _: JSONResponse(first) if "chat" in path and (first := next(answers, None)) else None
    )
    here = world(engine)
    assert "http://a: broken output on prompt 1: log-probability of token 0 is not finite; but not always" in (
        await here.waits("warmup")
    )
    assert (await here.ask("warmup")).outcome == PASSED


async def test_finite_answers_of_all_replicas_pass_the_warmup() -> None:
    result = await world(ScoringEngine(), ScoringEngine()).ask("warmup")
    assert result.outcome == PASSED
    assert result.reason == "2 prompts answered by 2 replicas, 8 tokens, all finite"
    assert result.evidence["replicas"]["small at http://b"] == {"prompts": 2, "tokens": 4}
