"""What a policy of Qwen3 or Llama 3 writes is the same call in the local engine and in vLLM. Starts no vLLM."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from ratchet.local.engine_local.transformers_text import ChatText
from tests.support import vllm_parsers
from tests.support.fake_engine import TOOLS
from tests.support.real_templates import real_tokenizer
from tests.support.vllm_process import VLLM

FAMILIES = {"qwen3": "hermes", "llama3_1": "llama3_json"}
"""Chat template -> the parser of vLLM (`--tool-call-parser`)."""
ARGUMENTS = ({"order_id": "K47"}, {"order_id": 'a "quoted" } brace', "more": {"deep": [1, 2.5, None]}}, {})


def written(family: str, *calls: dict[str, Any]) -> str:
    """Calls as a policy of the family writes them."""
    if family == "qwen3":
        return "\n".join(
            f"<tool_call>\n{json.dumps({'name': 'look_up', 'arguments': call})}\n</tool_call>" for call in calls
        )
    return "; ".join(json.dumps({"name": "look_up", "parameters": call}) for call in calls)


def texts(family: str) -> list[str]:
    """Calls, none, and what looks like one."""
    plain = ["It is lost.", "", "a < b", "{broken"]
    beside = [f"Let me look.\n{written(family, ARGUMENTS[0])}"] if family == "qwen3" else []
    python = [f"<|python_tag|>{written(family, ARGUMENTS[0])}"] if family == "llama3_1" else []
    return [
        *(written(family, argument) for argument in ARGUMENTS),
        written(family, *ARGUMENTS[:2]),
        *plain,
        *beside,
        *python,
    ]


def test_both_engines_read_the_same_calls_from_what_a_policy_writes(tmp_path: Path) -> None:
    asked: list[tuple[str, str, Any, str]] = []
    ours: list[Any] = []
    for family, parser in FAMILIES.items():
        tokenizer = real_tokenizer(tmp_path / family, family)
        tokenizer.save_pretrained(tmp_path / family)
        engine = ChatText(tokenizer)
        for text in texts(family):
            asked.append((parser, str(tmp_path / family), TOOLS, text))
            reply = engine.reply(text, TOOLS)
            ours.append([reply.content or "", [[call.name, json.loads(call.arguments)] for call in reply.calls]])
    ran = subprocess.run(
        [VLLM.with_name("python"), "-P", Path(vllm_parsers.__file__)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    theirs = [
        [(content or "").strip(), [[name, json.loads(arguments)] for name, arguments in calls]]
        for content, calls in json.loads(ran.stdout.splitlines()[-1])
    ]
    assert [len(calls) for _, calls in ours if calls] == [1, 1, 1, 2, 1] * 2
    for (_, _, _, text), here, there in zip(asked, ours, theirs, strict=True):
        assert [here[0].strip(), here[1]] == there, text
