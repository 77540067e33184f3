"""From a call that is over to its record: redacted, checked against the contract, never dropped."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest

from ratchet.bus.envelope import Sealer, unseal
from ratchet.contract import PolicyClaim, TrajectoryEnd, Turn, encode, named_id
from ratchet.contract.turn import EngineInfo
from ratchet.gateway.domain.turns import TurnHeader
from ratchet.gateway.recorder_process import LENGTH, SOURCE, CallJob, EventJob, Recorded, RecordMaker, serve
from ratchet.rules.redaction import Redactor
from ratchet.service.contracts import load_contracts
from tests.support.messages import AT

CONTRACTS = load_contracts()
USER = {"role": "user", "content": "hi"}


def record_maker() -> RecordMaker:
    return RecordMaker(Sealer(CONTRACTS, SOURCE, lambda: AT), Redactor(), 1_000_000)


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
    return CallJob(header=header, form="/chat/completions", latency_ms=5.0, **{**bodies, **members})


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


@pytest.mark.parametrize(
    ("sent", "got", "reason"),
    [
        (request(tools=[{"type": "function", "function": {"name": "f", "strict": True}}]), None, "constrained"),
        (request(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]), None,
         "multimodal"),
        (request(messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}]), None, None),
        (request(temperature=0.5), None, "unknown_logprobs"),
        (request(temperature=0.5), answer(logprobs_mode="processed_logprobs"), None),
        (request(temperature=0.5), answer(logprobs_mode="raw_logprobs"), "raw_logprobs"),
    ],
)  # fmt: skip
def test_no_learner_may_use_an_answer_that_was_not_drawn_freely_from_text_alone(
    sent: bytes, got: bytes | None, reason: str | None
) -> None:
    assert turn_of(record_maker().record(job(sent, got))).trainable.reason == reason


def test_the_setting_names_the_mode_of_log_probabilities_where_the_engine_does_not() -> None:
    sent = request(temperature=0.5)
    assert turn_of(record_maker().record(job(sent, logprob_mode="processed"))).trainable.ok
    raw = job(sent, answer(logprobs_mode="raw_logprobs"), logprob_mode="processed")
    assert turn_of(record_maker().record(raw)).trainable.reason == "raw_logprobs"


def test_a_turn_that_breaks_the_contract_is_published_without_its_tokens() -> None:
    """`echo` at vLLM: the first log-probability is null."""
    choice = {"message": {"content": "hello"}, "token_ids": [4], "logprobs": {"content": [{"logprob": None}]}}
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    recorded = record_maker().record(job(got=answer(choices=[choice], usage=usage)))
    turn = turn_of(recorded)
    assert recorded.problem == turn.trainable.reason == "invalid"
    assert (turn.response, turn.output_token_ids) == ({"content": "hello"}, None)


def test_a_turn_that_breaks_the_contract_also_without_tokens_records_that_the_call_happened() -> None:
    recorded = record_maker().record(job(request(temperature=-1), b"", error="temperature must not be negative"))
    turn = turn_of(recorded)
    assert (recorded.problem, recorded.detail) == ("invalid", "/sampling/temperature")
    assert (turn.error, turn.messages, turn.latency_ms) == ("temperature must not be negative", [], 5.0)


def test_a_turn_that_cannot_be_searched_holds_no_text() -> None:
    nested: Any = "secret"
    for _ in range(150):
        nested = [nested]
    recorded = record_maker().record(job(request(messages=[{"role": "user", "content": nested}])))
    turn = turn_of(recorded)
    assert (recorded.problem, turn.trainable.reason, turn.messages) == ("unsearched", "unsearched", [])


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
