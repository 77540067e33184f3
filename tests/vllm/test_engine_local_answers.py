"""What engine_local answers is what vLLM answers: vLLM's own models of its answers accept it. Starts no vLLM."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratchet.core.rules.arms import policy_name
from tests.support import vllm_models
from tests.support.engine_process import publish, running_engine
from tests.support.fake_engine import TOOLS
from tests.support.servers import RunningServer, s3_settings
from tests.support.vllm_process import VLLM

ROLE = "support"
MESSAGES = [{"role": "user", "content": "where is my order K47"}]
CHAT: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 6}
TEXT: dict[str, Any] = {"prompt": "where is my order", "max_tokens": 6}
LOGGED: dict[str, Any] = {"logprobs": True, "top_logprobs": 1, "return_token_ids": True}
FORCED: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 60}
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
KINDS = ("chat", "chat chunk", "completion", "completion chunk")
OURS = {*(f"{kind}.logprobs_mode" for kind in KINDS), "models.data[].probe"}
"""Members that engine_local adds: which distribution its log-probabilities are of, and whether a probe was compared."""
CHATS = {
    "plain": {},
    "log-probabilities": LOGGED,
    "several": {"n": 2, **LOGGED},
    "tools": {"tools": TOOLS},
    "forced tool": FORCED,
    "schema": {"structured_outputs": {"json": {"enum": ["a", "b"]}}},
}
TEXTS = {
    "plain": {},
    "log-probabilities": {"logprobs": 1, "return_token_ids": True},
    "prompt's log-probabilities": {"prompt": [20, 21, 22, 23], "prompt_logprobs": 0, "max_tokens": 1},
}
WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "unknown model": ("/v1/chat/completions", {**CHAT, "model": f"{ROLE}@9-00000000"}),
    "no messages": ("/v1/chat/completions", {"max_tokens": 1}),
    "bad member": ("/v1/chat/completions", {**CHAT, "temperature": "hot"}),
    "beyond the context": ("/v1/completions", {"prompt": [20] * 5000, "max_tokens": 6}),
    "no route": ("/v1/nothing", {}),
}


@pytest.fixture(scope="module")
def engine(s3: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, str]]:
    """engine_local, and the name of a policy that it finds."""
    store, folder = s3_settings(s3, "vllm-answers"), tmp_path_factory.mktemp("answers")
    published = publish(store, folder / "published", ROLE)
    with running_engine(store, folder) as server, httpx.Client(base_url=server.url, timeout=120) as http:
        yield http, policy_name(ROLE, 2, published.adapter.digest)


def answers(http: httpx.Client, model: str) -> Iterator[tuple[str, str, object]]:
    """Name, kind and content of each answer that a caller may meet."""
    for route, kind, basic, cases in (
        ("/v1/chat/completions", "chat", CHAT, CHATS),
        ("/v1/completions", "completion", TEXT, TEXTS),
    ):
        for name, members in cases.items():
            body = {"model": model, **basic, **members}
            yield f"{kind}, {name}", kind, answered(http.post(route, json=body))
            if "prompt_logprobs" not in members:  # as with vLLM, no stream has them
                with http.stream("POST", route, json={**body, **STREAM}) as stream:
                    for line in stream.iter_lines():
                        if line.startswith("data: {"):
                            yield f"{kind}, {name}, streamed", f"{kind} chunk", json.loads(line[6:])
    yield "tokens", "tokens", answered(http.post("/tokenize", json={"model": model, "messages": MESSAGES}))
    yield "models", "models", answered(http.get("/v1/models"))
    for name, (route, body) in WRONG.items():
        reply = http.post(route, json={"model": model, **body})
        assert reply.status_code >= 400, name
        error = reply.json()["error"]
        assert error["code"] is None or isinstance(error["code"], str)  # OpenAI's; vLLM's is the status
        yield f"error, {name}", "error", {"error": {**error, "code": reply.status_code}}


def answered(reply: httpx.Response) -> object:
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_models_of_vllm_accept_every_answer_of_the_local_engine(engine: tuple[httpx.Client, str]) -> None:
    recorded = list(answers(*engine))
    kinds = {kind for _, kind, _ in recorded}
    assert kinds == set(vllm_models.KINDS)
    checked = subprocess.run(
        [VLLM.with_name("python"), "-P", Path(vllm_models.__file__)],
        input=json.dumps([(kind, answer) for _, kind, answer in recorded]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr[-2000:]
    faults: list[list[str]] = json.loads(checked.stdout.splitlines()[-1])
    strange = {name: wrong for (name, _, _), one in zip(recorded, faults, strict=True) if (wrong := [*({*one} - OURS)])}
    assert strange == {}
