"""A request of OTLP as a recorder makes records of it: roles, secrets, prices, sizes, and the words for the rest."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest
from google.protobuf import json_format

from ratchet.bus.connection import Bus
from ratchet.bus.envelope import Causing, Record, Sealer
from ratchet.bus.message import Message
from ratchet.core.contract import Spans
from ratchet.core.contract.spans import Span
from ratchet.core.errors import InvalidMessage
from ratchet.core.service.asgi import Request, Response
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.opt_outs import KnownOptOuts
from ratchet.core.service.problems import HttpError
from ratchet.dialects.telemetry.otlp import JSON, PROTOBUF
from ratchet.extras.span_exporter.domain import call_span, request_of
from ratchet.gateway.domain.peer_updates import PeerUpdates
from ratchet.gateway.domain.prices import Price, Prices
from ratchet.gateway.domain.routing import Arms
from ratchet.gateway.error_shapes import ErrorShapes
from ratchet.gateway.recorder import Recorder
from ratchet.gateway.recorder_pool import Finish
from ratchet.gateway.recorder_process import Recorded
from ratchet.gateway.span_records import MESSAGE_BYTES, SpansJob, TakenSpans, take_spans, words_of
from ratchet.gateway.telemetry import Telemetry, answer, content_type_of, status_body
from ratchet.gateway.unrecorded import Unrecorded
from tests.support.messages import turn
from tests.support.span_exports import delivered
from tests.support.telemetry import RECEIVED, SEALER, batches, job, spelled, traced


def taken(body: bytes, **changes: Any) -> TakenSpans:
    return take_spans(job(body, **changes), SEALER)


def spans_of(body: bytes, **changes: Any) -> list[Span]:
    return [span for batch in batches(taken(body, **changes)) for span in batch.spans]


def with_members(**members: Any) -> bytes:
    """A request in JSON whose first span has these members."""
    request = json.loads(spelled(traced("a")))
    request["resourceSpans"][0]["scopeSpans"][0]["spans"][0] |= members
    return json.dumps(request).encode()


def test_service_decides_the_role() -> None:
    roles = {"shop": "support"}
    (batch,) = batches(taken(traced("a").protobuf, roles=roles, reported=["support"]))
    assert (batch.role, batch.service, len(batch.spans)) == ("support", "shop", 2)
    (other,) = batches(taken(traced("a", service="stock").protobuf, roles=roles))
    assert other.role == "default"


def test_role_that_the_key_may_not_report_is_refused_in_words() -> None:
    refused = taken(traced("a").protobuf, roles={"shop": "support"}).refused
    assert refused == {"of the role support, for which the key lacks the scope `infer:support`": 2}
    assert words_of(refused, 0) == f"2 refused: {next(iter(refused))}"


def test_secrets_become_placeholders_before_anything_is_sealed() -> None:
    secret = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "mail mia@example.com"}]}])
    trace = traced("a", **{"gen_ai.input.messages": secret}, content=False)
    (call, _) = spans_of(trace.protobuf)
    assert call.prompt == [{"role": "user", "content": "mail [REDACTED:email]"}]
    assert call.redactions == {"email": 1}


def test_user_is_a_keyed_hash_or_nothing() -> None:
    body = traced("a", **{"user.id": "mia@example.com"}).protobuf
    assert spans_of(body)[0].user_ref is None
    (ref,) = {spans_of(body, user_key=key)[0].user_ref for key in ("k", "k")}
    assert ref is not None
    assert "mia" not in ref


def test_price_of_the_model_gives_the_cost() -> None:
    body = traced("a", **{"llm.cost.total": "3"}).protobuf
    assert spans_of(body)[0].cost_usd is None
    usage = [{"key": f"gen_ai.usage.{kind}_tokens", "value": {"intValue": "1000000"}} for kind in ("input", "output")]
    request = json.loads(spelled(traced("a")))
    request["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"] += usage
    prices = {"gpt-4.1-mini": Price(prompt=2.0, completion=8.0)}
    (call, _) = spans_of(json.dumps(request).encode(), content_type=JSON, prices=prices)
    assert call.cost_usd == 10.0


def test_call_to_this_gateway_is_marked_as_recorded() -> None:
    body = traced("a", **{"server.address": "ratchet:8080"}).protobuf
    assert [spans_of(body, host=host)[0].is_recorded for host in ("ratchet:8080", "other", "")] == [True, False, False]


def test_evaluations_need_a_key_that_may_rate() -> None:
    body = traced("a").evaluation("relevance", value=1.0)
    (rated,) = spans_of(body, signal="logs", content_type=JSON, rated=["default"])
    (unrated,) = spans_of(body, signal="logs", content_type=JSON, rated=[])
    assert rated.evaluations
    assert unrated.evaluations is None


def test_same_request_has_the_same_id_and_another_service_another() -> None:
    trace = traced("a")
    ids = [batches(taken(body))[0].batch_id for body in (trace.protobuf, trace.protobuf, traced("b").protobuf)]
    assert ids[0] == ids[1] != ids[2]
    assert ids[0] != batches(taken(traced("a", service="other").protobuf))[0].batch_id


def test_spans_that_ratchet_sent_itself_do_not_come_back_as_runs() -> None:
    own = call_span(delivered(turn()), content=True)
    assert own is not None
    request = request_of([own])
    for body, content_type in (
        (request.SerializeToString(), PROTOBUF),
        (json_format.MessageToJson(request).encode(), JSON),
    ):
        refused = take_spans(job(body, content_type=content_type), SEALER)
        assert refused.records == []
        assert list(refused.refused) == ["is a span of Ratchet's own, which tells what is stored here already"]


def test_many_spans_travel_in_parts_and_one_that_is_too_large_is_refused() -> None:
    text = "word " * 20_000
    parts = batches(taken(traced("a", calls=20, **{"gen_ai.system_instructions": text}).protobuf))
    assert len(parts) > 1
    assert sum(len(part.spans) for part in parts) == 21
    assert max(len(msgspec.json.encode(part.spans)) for part in parts) <= MESSAGE_BYTES
    short = taken(traced("a").protobuf, largest=500)
    assert list(short.refused.values()) == [2]


@pytest.mark.parametrize("ns", [0, 1, 2**62, 2**64 - 1, 10**18])
def test_clock_that_is_wrong_counts_as_the_moment_of_receipt(ns: int) -> None:
    (call, _) = spans_of(with_members(startTimeUnixNano=str(ns), endTimeUnixNano=str(max(ns, 1))), content_type=JSON)
    assert call.ended_at == RECEIVED
    assert call.started_at == RECEIVED


def test_clock_within_a_month_counts() -> None:
    early = int((RECEIVED - timedelta(days=20)).timestamp()) * 10**9
    (call, _) = spans_of(with_members(startTimeUnixNano=str(early), endTimeUnixNano=str(early)), content_type=JSON)
    assert call.started_at == RECEIVED - timedelta(days=20)


def test_span_that_is_open_or_only_announced_is_left_out() -> None:
    assert len(spans_of(with_members(endTimeUnixNano="0"), content_type=JSON)) == 1
    assert len(spans_of(traced("a", **{"logfire.span_type": "pending_span"}).protobuf)) == 1


@pytest.mark.parametrize(
    "messages",
    [
        "{",
        "[1, 2]",
        '"text"',
        "[" * 5000,
        '[{"role": 5}]',
        '[{"role": "user", "parts": 7}]',
        '[{"parts": [{"type": []}]}]',
    ],
)
def test_content_that_is_none_costs_no_other_span(messages: str) -> None:
    made = taken(traced("a", content=False, **{"gen_ai.input.messages": messages}).protobuf)
    assert made.taken + sum(made.refused.values()) == 2
    assert made.taken >= 1


class Strict(Sealer):
    """Takes no message with a third call."""

    def seal(self, message: Message, cause: Causing | None = None) -> Record:
        if b"answer 2" in msgspec.json.encode(message):
            raise InvalidMessage("not the third one", "/spans/0")
        return super().seal(message, cause)


def test_span_that_breaks_the_contract_costs_no_other() -> None:
    strict = Strict(load_contracts(), "gateway", lambda: RECEIVED)
    made = take_spans(job(traced("a", calls=3, since=0).protobuf), strict)
    assert (made.taken, made.refused) == (3, {"breaks the contract: /spans/0: not the third one": 1})


@pytest.mark.parametrize("number", [2**33, 1e308, -1])
def test_number_that_cannot_be_true_is_unknown(number: float) -> None:
    names = ("gen_ai.usage.input_tokens", "gen_ai.usage.cost", "gen_ai.server.time_to_first_token")
    request = json.loads(spelled(traced("a")))
    span = request["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    span["attributes"] += [{"key": name, "value": {"doubleValue": number}} for name in names]
    call, _ = spans_of(json.dumps(request).encode(), content_type=JSON)
    assert (call.usage, call.cost_usd, call.first_token_ms) == (None, None, None)


def test_half_of_a_character_within_a_text_costs_no_span() -> None:
    cut = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "cut \ud83d pwd=hunter2"}]}])
    (call, _) = spans_of(traced("a", content=False, **{"gen_ai.input.messages": cut}).protobuf)
    assert call.prompt == [{"role": "user", "content": "cut ? pwd=[REDACTED:password]"}]


def test_secret_counts_in_each_call_that_repeats_it() -> None:
    chat = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "mail mia@example.com"}]}])
    spans = spans_of(traced("a", calls=3, content=False, **{"gen_ai.input.messages": chat}).protobuf)
    assert [span.redactions for span in spans] == [*[{"email": 1}] * 3, None]


def test_answer_is_in_the_requests_form() -> None:
    made = TakenSpans(refused={"too old": 2}, silent=1)
    in_json = json.loads(answer("traces", JSON, made).body)["partialSuccess"]
    assert in_json["rejectedSpans"] == "2"
    assert in_json["errorMessage"].startswith("2 refused: too old; 1 model calls came without content")
    assert answer("logs", JSON, TakenSpans()).body == b"{}"
    assert answer("logs", PROTOBUF, TakenSpans()) == Response(200, b"", [(b"content-type", PROTOBUF.encode())])


def test_content_types_are_those_of_otlp() -> None:
    assert content_type_of("Application/JSON; charset=utf-8") == JSON
    with pytest.raises(HttpError, match="x-protobuf"):
        content_type_of("text/plain")


def test_status_is_protobufs_own_encoding() -> None:
    assert status_body(503, "busy", PROTOBUF) == b"\x08\x0e\x12\x04busy"
    assert status_body(400, "x" * 200, PROTOBUF)[:5] == b"\x08\x03\x12\xc8\x01"
    assert json.loads(status_body(401, "no key", JSON)) == {"code": 16, "message": "no key"}


async def test_request_whose_sender_went_away_is_stored_all_the_same() -> None:
    reading, stored = asyncio.Event(), asyncio.Event()
    finishing: list[Finish] = []

    class Reading:
        def record_spans(self, _: SpansJob, finish: Finish) -> None:
            finishing.append(finish)
            reading.set()

    class Connected:
        largest = 1 << 20

        async def publish_record(self, _: Record) -> None:
            stored.set()

    recorder, bus = cast("Recorder", Reading()), cast("Bus", Connected())
    known = KnownOptOuts(asyncio.Event().wait)  # type: ignore[arg-type]
    unrecorded = Unrecorded(known, Arms(0), PeerUpdates(), lambda _: True, str, lambda: RECEIVED)
    telemetry = Telemetry(recorder, lambda: bus, {}, "default", None, unrecorded, Prices(), lambda: RECEIVED)
    request = Request("POST", "/v1/traces", {b"content-type": PROTOBUF.encode()}, traced("a").protobuf)
    asking = asyncio.create_task(telemetry.take("traces", request, None))
    await reading.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    finishing[0](Recorded(None, spans=taken(request.body)))
    async with asyncio.timeout(30):
        await stored.wait()


async def test_limit_is_503_for_an_exporter_and_stays_429_for_agents() -> None:
    async def limited(scope: Any, receive: Any, send: Any) -> None:
        problem = HttpError(429, "too many", retry_after_s=3)
        start = {"type": "http.response.start", "status": 429, "headers": [*problem.headers]}
        await send(start)
        await send({"type": "http.response.body", "body": problem.json})

    async def asked(path: str) -> tuple[int, dict[bytes, bytes], bytes]:
        sent: list[Any] = []

        async def send(event: Any) -> None:
            sent.append(event)

        headers = [(b"content-type", PROTOBUF.encode())]
        await ErrorShapes(limited)({"type": "http", "path": path, "headers": headers}, None, send)  # type: ignore[arg-type]
        return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]

    status, headers, body = await asked("/v1/traces")
    assert (status, headers[b"retry-after"], headers[b"content-type"]) == (503, b"3", PROTOBUF.encode())
    assert body == b"\x08\x0e\x12\x08too many"
    assert (await asked("/v1/chat/completions"))[0] == 429


def test_batches_are_of_one_trace_each() -> None:
    request = traced("a").request
    request.MergeFrom(traced("b").request)
    made: list[Spans] = batches(taken(request.SerializeToString()))
    assert [batch.trace_id for batch in made] == [traced("a").id, traced("b").id]


def test_job_crosses_to_another_process() -> None:
    sent = job(traced("a").protobuf, prices={"m": Price(prompt=1.0, completion=2.0)})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=SpansJob) == sent
