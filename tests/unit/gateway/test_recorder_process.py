"""From a call that is over to its record: redacted, checked against the contract, never dropped."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest

from ratchet.bus.envelope import Sealer, unseal
from ratchet.core.contract import PolicyClaim, TrajectoryEnd, Turn, encode, named_id
from ratchet.core.contract.turn import Constraint, EngineInfo, Provider, Trace, Usage
from ratchet.core.service.contracts import load_contracts
from ratchet.gateway.domain.prices import Price
from ratchet.gateway.domain.turns import TurnHeader
from ratchet.gateway.recorder_process import (
    LEFT_OUT,
    LENGTH,
    SOURCE,
    TOOL_BYTES,
    CallJob,
    Counted,
    EventJob,
    Recorded,
    RecordMaker,
    serve,
)
from tests.support.messages import AT

CONTRACTS = load_contracts()
USER = {"role": "user", "content": "hi"}
STRICT = {"type": "function", "function": {"name": "f", "strict": True}}


def record_maker(tool_bytes: int = TOOL_BYTES) -> RecordMaker:
    return RecordMaker(Sealer(CONTRACTS, SOURCE, lambda: AT), 1_000_000, tool_bytes)


def request(**members: Any) -> bytes:
    return msgspec.json.encode({"model": "support", "messages": [USER], **members})


def answer(**members: Any) -> bytes:
    choice = {
        "message": {"role": "assistant", "content": "hello"},
        "token_ids": [4, 5],
        "logprobs": {"content": [{"logprob": -0.1}, {"logprob": -0.2}]},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    return msgspec.json.encode({"choices": [choice], "prompt_token_ids": [1, 2, 3], "usage": usage, **members})


def job(sent: bytes | None = None, got: bytes | None = None, **members: Any) -> CallJob:
    header = TurnHeader(
        turn_id=named_id("turn", sent or b"", members),
        trajectory_id=named_id("trajectory", "x"),
        role="support",
        at=AT,
        policy=PolicyClaim(role="support", version=1, digest="a" * 64, arm="stable", weight=0.0),
        engine=EngineInfo(name="vllm"),
        turns=0,
        session_id=members.pop("session_id", None),
    )
    bodies = {"request": sent or request(), "answer": answer() if got is None else got}
    return CallJob(header=header, dialect="chat", latency_ms=5.0, **{**bodies, **members})


def turn_of(recorded: Recorded) -> Turn:
    assert recorded.record is not None
    message, _ = CONTRACTS.read(recorded.record.subject, unseal(recorded.record.headers, recorded.record.body))
    assert isinstance(message, Turn)
    return message


def test_a_good_call_becomes_a_trainable_turn() -> None:
    recorded = record_maker().record(job())
    turn = turn_of(recorded)
    assert (recorded.problem, turn.trainable.ok, turn.index, turn.latency_ms) == (None, True, 0, 5.0)
    assert turn.response == {"role": "assistant", "content": "hello"}


def test_a_turn_has_the_cost_of_its_tokens_and_what_metrics_count() -> None:
    recorded = record_maker().record(job(price=Price(1_000_000.0, 10.0)))
    assert turn_of(recorded).cost_usd == pytest.approx(3.00002)
    assert recorded.counted == Counted(None, None, Usage(prompt=3, completion=2), turn_of(recorded).cost_usd)
    unpriced = record_maker().record(job(request(top_p=0.5)))
    assert unpriced.counted == Counted("top_p", None, Usage(prompt=3, completion=2), None)


def test_the_prompt_of_several_answers_is_paid_for_with_the_first() -> None:
    (choice,) = msgspec.json.decode(answer())["choices"]
    two = answer(choices=[choice, choice])
    costs = [
        turn_of(record_maker().record(job(request(n=2), two, price=Price(1_000_000.0, 0.0), choice=number))).cost_usd
        for number in range(2)
    ]
    assert costs == [3.0, 0.0]


@pytest.mark.parametrize(
    ("sent", "got", "reason"),
    [
        (request(tools=[STRICT], tool_choice={"type": "allowed_tools"}), None, "constrained"),
        (request(logit_bias={"5": 1}), answer(logprobs_mode="processed_logprobs"), "constrained"),
        (request(tools=[STRICT]), None, "unknown_logprobs"),
        (request(tools=[STRICT]), answer(logprobs_mode="raw_logprobs"), "raw_logprobs"),
        (request(tools=[STRICT]), answer(logprobs_mode="processed_logprobs"), None),
        (request(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]), None,
         "multimodal"),
        (request(messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}]), None, None),
        (request(temperature=0.5), None, "unknown_logprobs"),
        (request(temperature=0.5), answer(logprobs_mode="processed_logprobs"), None),
        (request(temperature=0.5), answer(logprobs_mode="raw_logprobs"), "raw_logprobs"),
    ],
)  # fmt: skip
def test_answer_not_drawn_freely_from_text_alone_is_for_no_learner(
    sent: bytes, got: bytes | None, reason: str | None
) -> None:
    assert turn_of(record_maker().record(job(sent, got))).trainable.reason == reason


def drawn(number: int, *ids: int) -> dict[str, Any]:
    """A choice with these tokens."""
    return {
        "index": number,
        "message": {"role": "assistant", "content": "hello"},
        "token_ids": ids,
        "logprobs": {"content": [{"logprob": -0.1} for _ in ids]},
        "finish_reason": "stop",
    }


@pytest.mark.parametrize(
    ("asked", "choices", "completion", "reason"),
    [
        (2, [drawn(0, 4), drawn(1, 5, 6)], 3, None),
        (2, [drawn(0, 4), drawn(1, 5, 6)], 4, "count_mismatch"),
        (1, [drawn(0, 4), drawn(1, 5, 6)], 3, "count_mismatch"),
        (3, [drawn(0, 4), drawn(1, 5, 6)], 3, "count_mismatch"),
    ],
    ids=["as asked", "another number of tokens", "more answers than asked", "fewer"],
)
def test_answers_are_trainable_when_all_came_with_all_their_tokens(
    asked: int, choices: list[dict[str, Any]], completion: int, reason: str | None
) -> None:
    got = answer(choices=choices, usage={"prompt_tokens": 3, "completion_tokens": completion})
    for number in range(2):
        turn = turn_of(record_maker().record(job(request(n=asked), got, choice=number)))
        assert turn.trainable.reason == reason


@pytest.mark.parametrize(
    "message",
    [
        {"content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
        {"content": None, "audio": {"id": "audio_1", "data": "AAAA"}},
    ],
)
def test_an_answer_of_more_than_text_is_not_learned_from(message: dict[str, Any]) -> None:
    got = answer(choices=[{**drawn(0, 4, 5), "message": {"role": "assistant", **message}}])
    assert turn_of(record_maker().record(job(None, got))).trainable.reason == "multimodal"


def chunk(text: str, token: int, **members: Any) -> bytes:
    """An event of a stream with one token."""
    logprobs = {"content": [{"logprob": -0.1}]}
    choice = {"index": 0, "delta": {"content": text}, "token_ids": [token], "logprobs": logprobs, **members}
    return b"data: " + msgspec.json.encode({"choices": [choice]})


USAGE = b'data: {"choices": [], "prompt_token_ids": [1], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}'


@pytest.mark.parametrize(
    "garbage",
    [
        b"data: {",
        b"data: [1]",
        b'data: {"choices": 5}',
        b'data: {"choices": [{"delta": "x"}]}',
        b'data: {"choices": [{"index": "0", "delta": {}}]}',
        b'data: {"choices": [{"token_ids": 5}]}',
    ],
)
def test_stream_is_recorded_without_its_unreadable_part_and_not_learned(garbage: bytes) -> None:
    begin, end = chunk("hel", 4), chunk("lo", 5, finish_reason="stop")
    whole, broken = (b"\n\n".join(events) for events in ([begin, end, USAGE], [begin, garbage, end, garbage, USAGE]))
    assert turn_of(record_maker().record(job(None, whole, streamed=True))).trainable.ok
    turn = turn_of(record_maker().record(job(None, broken, streamed=True)))
    assert (turn.trainable.reason, turn.response) == ("unreadable", {"role": "assistant", "content": "hello"})
    assert turn.usage == Usage(prompt=1, completion=2)


def test_of_stream_with_much_that_cannot_be_read_its_beginning_is_recorded() -> None:
    broken = b"\n\n".join([chunk("hel", 4), *[b"data: {"] * 9, chunk("lo", 5, finish_reason="stop"), USAGE])
    turn = turn_of(record_maker().record(job(None, broken, streamed=True)))
    assert (turn.trainable.reason, turn.response) == ("unreadable", {"role": "assistant", "content": "hel"})


def test_an_answer_that_cannot_be_read_at_all_leaves_its_request() -> None:
    turn = turn_of(record_maker().record(job(None, answer(choices=[{"index": 0, "message": 5}]))))
    assert (turn.trainable.reason, turn.messages, turn.response) == ("unreadable", [USER], None)


def test_a_turn_records_what_its_answer_was_constrained_to() -> None:
    dialect = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"properties": {"z": {}, "a": {}}}}}
    masked = answer(logprobs_mode="processed_logprobs")
    turn = turn_of(record_maker().record(job(request(response_format=dialect, stop_token_ids=[7]), masked)))
    assert turn.trainable.ok
    assert turn.constraint == Constraint(
        kind="json_schema",
        specification='{"properties": {"z": {}, "a": {}}}',
        member="response_format",
        stop_token_ids=[7],
    )
    assert turn_of(record_maker().record(job(request(), masked))).constraint is None


def test_secret_in_constraint_is_replaced_and_its_turn_is_not_learned_from() -> None:
    choices = {"choice": ["mia@example.com", "someone else"]}
    masked = answer(logprobs_mode="processed_logprobs")
    turn = turn_of(record_maker().record(job(request(structured_outputs=choices), masked)))
    assert turn.constraint is not None
    assert "mia@example.com" not in turn.constraint.specification
    assert (turn.trainable.reason, turn.output_token_ids) == ("redacted", None)


def test_setting_names_the_mode_of_logprobs_where_the_engine_does_not() -> None:
    sent = request(temperature=0.5)
    assert turn_of(record_maker().record(job(sent, logprob_mode="processed"))).trainable.ok
    raw = job(sent, answer(logprobs_mode="raw_logprobs"), logprob_mode="processed")
    assert turn_of(record_maker().record(raw)).trainable.reason == "raw_logprobs"


def test_a_turn_that_breaks_the_contract_is_published_without_its_tokens() -> None:
    """`echo` at vLLM: the first log-probability is null."""
    tokens = {"token_ids": [4], "logprobs": {"content": [{"logprob": None}]}}
    choice = {"message": {"content": "hello"}, "finish_reason": "stop", **tokens}
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    recorded = record_maker().record(job(got=answer(choices=[choice], usage=usage)))
    turn = turn_of(recorded)
    assert (recorded.problem, turn.trainable.reason) == ("invalid", "impossible_logprobs")
    assert (turn.response, turn.output_token_ids) == ({"content": "hello"}, None)


def test_turn_that_breaks_the_contract_still_records_its_call() -> None:
    recorded = record_maker().record(job(request(temperature=-1), b"", error="temperature must not be negative"))
    turn = turn_of(recorded)
    assert (recorded.problem, recorded.detail) == ("invalid", "/sampling/temperature")
    assert (turn.error, turn.messages, turn.latency_ms) == ("temperature must not be negative", [], 5.0)


def test_a_turn_keeps_what_can_be_searched_of_it() -> None:
    nested: Any = "secret"
    for _ in range(150):
        nested = [nested]
    hostile = request(messages=[USER, {"role": "user", "content": nested}], metadata={"deep": nested})
    recorded = record_maker().record(job(hostile))
    turn = turn_of(recorded)
    assert (recorded.problem, turn.trainable.reason) == ("unsearched", "unsearched")
    assert turn.messages == [USER, {"role": "user", "content": LEFT_OUT}]
    assert (turn.response, turn.output_token_ids, turn.parameters) == (
        {"role": "assistant", "content": "hello"},
        None,
        None,
    )


def test_respelled_answer_links_to_the_call_that_gave_it() -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    call = {"id": "call_Zx91kk2lmQ8", "type": "function", "function": function}
    choice = {"message": {"role": "assistant", "content": None, "tool_calls": [call]}, "token_ids": [4, 5]}
    choice["logprobs"] = {"content": [{"logprob": -0.1}, {"logprob": -0.2}]}
    maker = record_maker()
    first = turn_of(maker.record(job(got=answer(choices=[choice]))))
    respelled = {"role": "assistant", "content": "", "name": "x", "tool_calls": [{**call, "index": 0}]}
    respelled["tool_calls"][0]["function"] = {"name": "f", "arguments": '{"a":1.0}'}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
    got = answer(prompt_token_ids=[1, 2, 3, 4, 9, 6], usage={"prompt_tokens": 6, "completion_tokens": 2})
    second = turn_of(maker.record(job(request(messages=[USER, respelled, result]), got)))
    assert (second.parent_turn_id, second.parent_messages, second.messages) == (first.turn_id, None, [result])
    assert second.prompt_token_ids is not None
    assert (second.prompt_token_ids.prefix_length, second.prompt_token_ids.suffix) == (4, [9, 6])
    compacted = [{"role": "user", "content": "so far: much"}, respelled, result]
    third = turn_of(maker.record(job(request(messages=compacted))))
    assert (third.parent_turn_id, third.parent_messages, third.messages) == (first.turn_id, 0, compacted)
    assert third.index == 1


def test_changed_clock_in_system_prompt_keeps_link_and_prompt_as_it_was() -> None:
    maker = record_maker()
    first = turn_of(maker.record(job(request(messages=[{"role": "system", "content": "12:01"}, USER]))))
    later = [{"role": "system", "content": "12:02"}, USER, {"role": "assistant", "content": "hello"}, USER]
    second = turn_of(maker.record(job(request(messages=later))))
    assert (second.parent_turn_id, second.parent_messages, second.messages) == (first.turn_id, 0, later)


def test_call_that_another_gateway_answered_is_named_whole() -> None:
    whole = [USER, {"role": "assistant", "content": "hello"}, USER]
    hinted = job(request(messages=whole))
    header = msgspec.structs.replace(hinted.header, parent_hint=named_id("elsewhere"), turns=3, trajectory_by="prefix")
    turn = turn_of(record_maker().record(msgspec.structs.replace(hinted, header=header)))
    assert (turn.parent_turn_id, turn.parent_messages, turn.messages) == (named_id("elsewhere"), 0, whole)
    assert (turn.index, turn.trajectory_by) == (3, "prefix")
    assert turn.prompt_token_ids is not None
    assert turn.prompt_token_ids.prefix_length == 0


def test_continuation_of_a_redacted_call_shows_none_of_its_tokens() -> None:
    call = {"id": "call_Zx91kk2lmQ8", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    spoken = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"message": spoken, "token_ids": [4, 5], "logprobs": {"content": [{"logprob": -0.1}, {"logprob": -0.2}]}}
    maker = record_maker()
    mail = {"role": "user", "content": "I am mia@example.com"}
    first = turn_of(maker.record(job(request(messages=[mail]), answer(choices=[choice]))))
    compacted = [{"role": "user", "content": "so far: a name"}, spoken, {"role": "tool", "tool_call_id": call["id"]}]
    second = turn_of(maker.record(job(request(messages=compacted))))
    assert (first.redactions, second.parent_turn_id) == ({"email": 1}, first.turn_id)
    assert second.prompt_token_ids is not None
    assert second.prompt_token_ids.prefix_length == 0


def test_instructions_with_a_secret_bar_tokens_where_a_digest_names_them() -> None:
    maker = record_maker()
    ours = {"role": "system", "content": "Write to mia@example.com."}
    later = [USER, {"role": "assistant", "content": "hello"}, USER]
    turns: list[Turn] = []
    for clock, messages in (("12:01", [USER]), ("12:02", later)):
        sent = request(messages=[{"role": "system", "content": clock}, *messages])
        turns.append(turn_of(maker.record(job(sent, asked=request(messages=[ours, *messages])))))
    assert turns[1].parent_messages == 0
    assert [turn.trainable.reason for turn in turns] == ["redacted", "redacted"]


@pytest.mark.parametrize(
    ("asked", "recorded"),
    [
        ({"model": "support"}, None),
        ({"model": "openai/gpt-4.1-mini"}, {"model": "openai/gpt-4.1-mini"}),
        ({"model": "support", "adapter_id": "support@1"}, {"model": "support@1"}),
    ],
)
def test_turn_names_the_model_that_stood_for_its_role_also_of_failed_call(
    asked: dict[str, str], recorded: dict[str, str] | None
) -> None:
    failed = msgspec.structs.replace(job(request(**asked)), answer=b"", error="the provider has no such model")
    for one in (job(request(**asked)), failed):
        assert turn_of(record_maker().record(one)).parameters == recorded


def test_other_members_and_what_the_provider_reports_are_redacted() -> None:
    asked = request(
        user="mia",
        stop=["END"],
        reasoning_effort="low",
        metadata={"mail": "mia@example.com"},
        response_format={"type": "text"},
        temperature=1.0,
        huge="x" * 20_000,
    )
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 1}}
    got = answer(id="chatcmpl-1", model="big-2026", system_fingerprint="fp", service_tier="x" * 300, usage=usage)
    traced = job(asked, got, request_id="req_1")
    trace = Trace(trace_id="4" * 32, span_id="0" * 15 + "1", baggage="user=mia@example.com")
    traced = msgspec.structs.replace(traced, header=msgspec.structs.replace(traced.header, trace=trace, key_id="k1"))
    turn = turn_of(record_maker().record(traced))
    assert turn.parameters is not None
    assert set(turn.parameters) == {"stop", "reasoning_effort", "metadata", "response_format", "left_out"}
    assert turn.parameters["left_out"] == ["huge"]
    assert turn.provider == Provider(id="chatcmpl-1", model="big-2026", fingerprint="fp", request_id="req_1")
    assert turn.usage is not None
    assert (turn.usage.reasoning, turn.key_id, turn.api) == (1, "k1", "chat")
    assert turn.redactions == {"email": 2}
    assert turn.trace is not None
    assert "mia" not in (turn.trace.baggage or "")


def test_a_call_that_continues_a_redacted_one_is_redacted_too() -> None:
    maker = record_maker()
    mail = {"role": "user", "content": "I am mia@example.com"}
    first = turn_of(maker.record(job(request(messages=[mail]))))
    following = [mail, {"role": "assistant", "content": "hello"}, USER]
    second = turn_of(maker.record(job(request(messages=following))))
    assert (first.redactions, second.parent_turn_id) == ({"email": 1}, first.turn_id)
    assert (second.trainable.reason, second.prompt_token_ids, second.index) == ("redacted", None, 1)


def test_an_end_that_cannot_be_searched_is_not_published() -> None:
    nested: Any = "secret"
    for _ in range(150):
        nested = {"x": nested}
    ended = TrajectoryEnd(trajectory_id=named_id("t"), timestamp=AT, labels={"mail": "mia@example.com"})
    good = record_maker().record(EventJob(TrajectoryEnd.TOPIC, encode(ended)))
    assert good.record is not None
    assert b"mia@example.com" not in good.record.body
    hostile = msgspec.structs.replace(ended, labels={"x": nested})
    recorded = record_maker().record(EventJob(TrajectoryEnd.TOPIC, encode(hostile)))
    assert (recorded.record, recorded.problem) == (None, "unsearched")


def test_a_recorder_process_answers_each_job_in_order_until_its_input_ends() -> None:
    jobs = [job(request(seed=number)) for number in range(3)]
    frames = [LENGTH.pack(len(sealed)) + sealed for sealed in map(msgspec.msgpack.encode, jobs)]
    sink = io.BytesIO()
    serve(io.BytesIO(b"".join(frames)), sink, record_maker())
    answered, rest = list[str](), sink.getvalue().removeprefix(LENGTH.pack(0))
    while rest:
        (length,) = LENGTH.unpack(rest[: LENGTH.size])
        recorded = msgspec.msgpack.decode(rest[LENGTH.size : LENGTH.size + length], type=Recorded)
        answered.append(turn_of(recorded).turn_id)
        rest = rest[LENGTH.size + length :]
    assert answered == [one.header.turn_id for one in jobs]
