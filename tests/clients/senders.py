"""Public SDKs and instrumentations that send telemetry, each as its makers ship it, and how to run one.

`record` keeps what a sender sends as a fixture of `make test`: `python -m tests.clients.senders [NAME ...]`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ratchet.core.service.asgi import Answer, Handler, Request, Response
from tests.clients.environments import NODE_FOLDER, node, python_of
from tests.clients.provider import ScriptedProvider, providing
from tests.support.running import listening
from tests.support.telemetry import SENT, VERSIONS

SCRIPTS = Path(__file__).parent / "python" / "telemetry"
LIMIT_S = 120
LATEST = {"OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental"}
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
QUIET = {"TRACELOOP_TELEMETRY": "false", "LANGFUSE_SDK_TELEMETRY": "false"}


@dataclass(frozen=True, slots=True)
class Sender:
    """A script with an SDK, and the packages whose versions tell what it is."""

    script: str
    packages: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    lock: str = "telemetry"

    def command(self) -> list[str]:
        """What runs it; makes its environment first, if it has to."""
        if self.lock == "node":
            return [str(node()), str(NODE_FOLDER / self.script)]
        return [str(python_of(self.lock)), str(SCRIPTS / self.script)]


def _of_langchain(instrumentation: str, package: str) -> Sender:
    variables = {"INSTRUMENTATION": instrumentation, CAPTURE: "SPAN_ONLY", **LATEST}
    return Sender("langchain_agent.py", ("langchain", package), variables)


GENAI = tuple(f"opentelemetry-instrumentation-genai-{provider}" for provider in ("openai", "anthropic"))
SENDERS = {
    "conventions_in_spans": Sender("conventions.py", GENAI, {CAPTURE: "SPAN_ONLY", **LATEST}),
    "conventions_in_events": Sender("conventions.py", GENAI, {CAPTURE: "EVENT_ONLY", **LATEST}),
    "conventions_without_content": Sender("conventions.py", GENAI),
    "older_events": Sender(
        "events.py", ("opentelemetry-instrumentation-openai-v2",), {CAPTURE: "true"}, "telemetry_events"
    ),
    "openinference_sdks": Sender(
        "openinference_sdks.py",
        ("openinference-instrumentation-openai", "openinference-instrumentation-anthropic"),
    ),
    "openinference_langchain": _of_langchain("openinference", "openinference-instrumentation-langchain"),
    "genai_langchain": _of_langchain("genai", "opentelemetry-instrumentation-genai-langchain"),
    "traceloop_langchain": _of_langchain("traceloop", "opentelemetry-instrumentation-langchain"),
    "traceloop_sdk": Sender("traceloop_sdk.py", ("traceloop-sdk",)),
    "pydantic_ai_logfire": Sender("pydantic_ai_agent.py", ("pydantic-ai-slim", "logfire")),
    "logfire_sdks": Sender("logfire_openai.py", ("logfire", "openai", "anthropic")),
    "langfuse_sdk": Sender("langfuse_sdk.py", ("langfuse",)),
    "vercel": Sender("telemetry.mjs", ("ai", "@ai-sdk/otel"), lock="node"),
    "vercel_legacy": Sender("telemetry.mjs", ("ai", "@ai-sdk/otel"), {"LEGACY": "1"}, lock="node"),
}


async def run(sender: Sender, endpoint: str, headers: str = "") -> None:
    """Run a sender to its end: its model is the scripted provider, its telemetry goes to `endpoint`."""
    async with providing(ScriptedProvider()) as provider:
        with tempfile.TemporaryDirectory() as home:
            variables = {
                "HOME": home,
                "PATH": os.environ["PATH"],
                "PROVIDER": provider,
                "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
                "OTEL_EXPORTER_OTLP_HEADERS": headers,
                **QUIET,
                **sender.variables,
            }
            process = await asyncio.create_subprocess_exec(
                *sender.command(),
                cwd=home,
                env=variables,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            printed, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode == 0, printed.decode()[-4000:]


async def record(name: str) -> None:
    """Keep the bytes that a sender sends."""
    sent: list[tuple[str, bytes]] = []

    async def keep(request: Request) -> Answer:
        sent.append((request.path.rpartition("/")[2], request.body))
        return Response(200, b"{}")

    def find(method: str, path: str) -> Handler:
        return keep

    async with listening(find) as url:
        await run(SENDERS[name], url)
    for old in SENT.glob(f"{name}.*.bin"):
        old.unlink()
    kept = [(signal, body) for signal, body in sent if signal in ("traces", "logs")]
    for number, (signal, body) in enumerate(kept):
        (SENT / f"{name}.{number}.{signal}.bin").write_bytes(body)


def versions() -> dict[str, dict[str, str]]:
    """The packages of every sender, as their locks have them."""
    locks = {lock: _locked(lock) for lock in {sender.lock for sender in SENDERS.values()}}
    return {name: {each: locks[sender.lock][each] for each in sender.packages} for name, sender in SENDERS.items()}


def _locked(lock: str) -> dict[str, str]:
    if lock == "node":
        return dict(json.loads((NODE_FOLDER / "package.json").read_text())["dependencies"])
    lines = (Path(__file__).parent / "locks" / f"{lock}.txt").read_text().split()
    return dict(line.split("==") for line in lines if "==" in line)


async def main(names: Sequence[str]) -> None:
    """Record these senders, or all of them, one after the other."""
    SENT.mkdir(parents=True, exist_ok=True)
    for name in names or SENDERS:
        sys.stderr.write(f"recording {name}\n")
        await record(name)
    VERSIONS.write_text(json.dumps(versions(), indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
