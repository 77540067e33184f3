"""Anthropic's own client over the Messages API, translated to a scripted chat engine and back."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, cast

import anthropic
import httpx2
import msgspec
import pytest
from pydantic import BaseModel

from ratchet.core.errors import RatchetError
from ratchet.core.service.asgi import Answer, EventStream, Handler, JsonApi, Request, Response, json_response
from ratchet.core.service.problems import HttpError, http_error
from ratchet.dialects.messages.answers import error_body, from_chat
from ratchet.dialects.messages.reading import estimate, read, to_chat
from ratchet.dialects.messages.streams import MessageStream, sse
from tests.support.fake_engine import tool_call
from tests.support.fake_streams import vllm_chunks

TOOLS: list[Any] = [
    {
        "name": "look_up",
        "description": "Finds an order.",
        "input_schema": {"type": "object", "properties": {"order_id": {"type": "string"}}},
    }
]
ASKED: list[Any] = [{"role": "user", "content": "Where is K47?"}]


@dataclass
class Translated:
    """The Messages API over an engine of chat completions that answers from a script."""

    script: list[dict[str, Any]]
    """Its messages, in order."""
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    refusal: HttpError | None = None
    """Answers every request."""
    breaks: HttpError | None = None
    """Ends every stream after its first chunks."""

    def find(self, method: str, path: str) -> Handler:
        return {"/v1/messages": self.messages, "/v1/messages/count_tokens": self.count}[path]

    async def messages(self, request: Request) -> Answer:
        try:
            return self._answer(request.json_object())
        except RatchetError as error:
            problem = http_error(error)
            body = error_body(problem.status, str(problem), code=problem.code, param=problem.param, request_id="req_1")
            return json_response(body, problem.status, [(b"request-id", b"req_1")])

    def _answer(self, body: dict[str, Any]) -> Answer:
        if self.refusal is not None:
            raise self.refusal
        asked = read(body)
        chat = to_chat(asked)
        self.asked.append(chat)
        message = self.script.pop(0)
        answer = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": "support@1-abc",
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
                    "logprobs": None,
                }
            ],
            "usage": {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19},
        }
        if not asked.chat.get("stream"):
            return json_response(from_chat(answer, asked.stops))
        return EventStream(self._events(vllm_chunks(answer, {"stream_options": {"include_usage": True}}), asked.stops))

    async def _events(self, chunks: list[dict[str, Any]], stops: Any) -> AsyncGenerator[bytes, None]:
        stream = MessageStream(stops)
        yield b'event: ping\ndata: {"type":"ping"}\n\n'
        for chunk in chunks[: 3 if self.breaks else None]:
            for event in stream.feed(chunk):
                yield event
        if self.breaks is not None:
            yield sse(error_body(self.breaks.status, str(self.breaks)))
            return
        for event in stream.finish():
            yield event

    async def count(self, request: Request) -> Response:
        return json_response({"input_tokens": estimate(read(request.json_object(), counting=True).chat)})


def client_of(world: Translated) -> anthropic.AsyncAnthropic:
    transport = httpx2.ASGITransport(app=cast("Any", JsonApi(world.find, 1 << 20)))
    client = httpx2.AsyncClient(transport=transport)
    return anthropic.AsyncAnthropic(api_key="none", base_url="http://gateway", max_retries=0, http_client=client)


async def test_an_answer_reads_as_anthropics() -> None:
    world = Translated([{"content": "It arrives today.", "reasoning": "easy"}])
    message = await client_of(world).messages.create(
        model="support", max_tokens=50, system="Be brief.", messages=ASKED, extra_body={"temperature": 0.5}
    )
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert (message.content[1].text, message.stop_reason) == ("It arrives today.", "end_turn")  # type: ignore[union-attr]
    assert (message.usage.input_tokens, message.usage.output_tokens, message.model) == (12, 7, "support@1-abc")
    assert world.asked[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert world.asked[0]["temperature"] == 0.5


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_loop_of_parallel_tools_ends_with_an_answer(streamed: bool) -> None:
    both = [tool_call("call_1"), tool_call("call_2", '{"order_id": "K48"}')]
    world = Translated([{"content": "Wait.", "tool_calls": both}, {"content": "Both arrive today."}])
    client = client_of(world)
    messages: list[Any] = [*ASKED]
    while True:
        asked: Any = {"model": "support", "max_tokens": 50, "messages": messages, "tools": TOOLS}
        if streamed:
            async with client.messages.stream(**asked) as stream:
                message: Any = await stream.get_final_message()
        else:
            message = await client.messages.create(**asked)
        messages.append({"role": "assistant", "content": message.content})
        if message.stop_reason != "tool_use":
            break
        calls = [block for block in message.content if block.type == "tool_use"]
        assert [call.input for call in calls] == [{"order_id": "K47-2026"}, {"order_id": "K48"}]
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": f"{call.id}: today"} for call in calls]
        messages.append({"role": "user", "content": results})

    assert message.content[0].text == "Both arrive today."
    *_, answered, first, second = world.asked[1]["messages"]
    assert [call["id"] for call in answered["tool_calls"]] == ["call_1", "call_2"]
    assert (first["tool_call_id"], second["content"]) == ("call_1", "call_2: today")


async def test_a_stream_is_accumulated_by_the_client() -> None:
    world = Translated([{"reasoning_content": "easy", "content": "It arrives today."}])
    async with client_of(world).messages.stream(model="support", max_tokens=50, messages=ASKED) as stream:
        pieces = [piece async for piece in stream.text_stream]
        message = await stream.get_final_message()
    assert (len(pieces) > 1, "".join(pieces)) == (True, "It arrives today.")
    assert message.content[0].to_dict() == {"type": "thinking", "thinking": "easy", "signature": "ratchet"}
    assert (message.stop_reason, message.usage.input_tokens, message.usage.output_tokens) == ("end_turn", 12, 7)


async def test_a_schema_comes_back_parsed() -> None:
    class City(BaseModel):
        name: str

    world = Translated([{"content": '{"name": "Bern"}'}])
    message = await client_of(world).messages.parse(model="support", max_tokens=50, messages=ASKED, output_format=City)
    assert message.parsed_output == City(name="Bern")
    assert world.asked[0]["response_format"]["json_schema"]["schema"]["properties"]["name"]["type"] == "string"


async def test_tokens_are_counted() -> None:
    counted = await client_of(Translated([])).messages.count_tokens(model="support", messages=ASKED, tools=TOOLS)
    assert counted.input_tokens > 10


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (HttpError(400, "x", code="context_length_exceeded"), anthropic.BadRequestError),
        (HttpError(401, "x", code="invalid_api_key"), anthropic.AuthenticationError),
        (HttpError(403, "x"), anthropic.PermissionDeniedError),
        (HttpError(404, "x", code="model_not_found"), anthropic.NotFoundError),
        (HttpError(413, "x"), anthropic.APIStatusError),
        (HttpError(429, "x"), anthropic.RateLimitError),
        (HttpError(502, "x"), anthropic.InternalServerError),
        (HttpError(503, "x"), anthropic.APIStatusError),
    ],
)
async def test_an_error_is_raised_as_its_class(refusal: HttpError, kind: type[anthropic.APIStatusError]) -> None:
    with pytest.raises(kind) as raised:
        await client_of(Translated([], refusal=refusal)).messages.create(model="support", max_tokens=50, messages=ASKED)
    body = cast("dict[str, Any]", raised.value.body)
    assert (raised.value.request_id, raised.value.error_code, body["type"]) == ("req_1", refusal.code, "error")
    assert raised.value.type == body["error"]["type"]


async def test_a_stream_that_breaks_off_raises() -> None:
    world = Translated([{"content": "It arrives today."}], breaks=HttpError(502, "the engine broke off"))
    with pytest.raises(anthropic.APIStatusError, match="broke off"):
        async with client_of(world).messages.stream(model="support", max_tokens=50, messages=ASKED) as stream:
            await stream.until_done()


async def test_a_tool_that_anthropic_runs_is_refused_by_name() -> None:
    search: Any = {"type": "web_search_20260318", "name": "web_search"}
    with pytest.raises(anthropic.BadRequestError, match=r"tools\.0") as raised:
        await client_of(Translated([])).messages.create(model="support", max_tokens=50, messages=ASKED, tools=[search])
    assert raised.value.error_code == "unsupported"
    assert msgspec.json.encode(raised.value.body)
