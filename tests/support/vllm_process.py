"""vLLM itself, as `make vllm` has installed it, with Ratchet's plugin: two replicas on one tiny model and one store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from ratchet.core.rules.arms import policy_name
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.policies import Policy, publish_policy
from ratchet.local.local_stack.ports import free_ports
from ratchet.local.local_stack.program import Program
from tests.support.engine_process import Published, publish_in
from tests.support.servers import RunningServer, running, variables

REPOSITORY = Path(__file__).parents[2]
ON_A_GPU = os.environ.get("RATCHET_VLLM")
"""The command of a vLLM for CUDA."""
VLLM = Path(ON_A_GPU or REPOSITORY / ".vllm" / "bin" / "vllm")
ROLE = "support"
HIDDEN = 128
"""Dimensions of the model: vLLM has no attention for heads of fewer than 32 on CPUs."""
MAX_RANK = 16
CONTEXT = 512
START_S = 900.0
"""Deadline of a start: a minute on a quiet machine, several beside other work."""
PROCESSED, RAW = "processed_logprobs", "raw_logprobs"


@dataclass(frozen=True)
class RunningVllm:
    """A replica, which answers for every policy of the store on its base."""

    server: RunningServer
    http: httpx.Client
    published: Published
    shared: SharedSettings
    cache: Path
    """Of the plugin; the replicas share it."""
    logprobs_mode: str
    vocabulary: int

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.server.url

    @property
    def model(self) -> str:
        """The name of the adapter."""
        return self.name_of(self.published.adapter)

    def name_of(self, policy: Policy, version: int = 1) -> str:
        """A policy's immutable name."""
        return policy_name(policy.manifest.role, version, policy.digest)

    def publish(self, **changes: Any) -> Policy:
        """Another manifest of the same adapter."""
        return publish_policy(Objects(self.shared), msgspec.structs.replace(self.published.adapter.manifest, **changes))

    def ask(self, model: str, **members: Any) -> httpx.Response:
        """One short chat."""
        body = {"model": model, "messages": [{"role": "user", "content": "where is my order K47"}], "max_tokens": 4}
        return self.http.post("/v1/chat/completions", json=body | members)

    def listed(self) -> list[str]:
        """The models that it lists: its base, and the adapters that it has loaded."""
        return [model["id"] for model in self.http.get("/v1/models").json()["data"]]


@contextmanager
def running_replicas(
    scratch: Path, shared: SharedSettings, modes: Sequence[str] = (PROCESSED, RAW), **env: str
) -> Iterator[list[RunningVllm]]:
    """Replicas as docs/guides/vllm.md starts them, all at once: one takes minutes. `env`: more of their environment."""
    objects = Objects(shared)
    objects.ensure_bucket()
    published = publish_in(objects, scratch, ROLE, HIDDEN)
    vocabulary: int = msgspec.json.decode((published.directory / "config.json").read_bytes())["vocab_size"]
    cache = scratch / "adapters"
    given = plugin_variables(shared, cache) | env
    with ExitStack() as stack, ThreadPoolExecutor(len(modes)) as starts:

        def start(number: int, mode: str) -> RunningServer:
            folder = scratch / f"replica-{number}"
            folder.mkdir()
            return stack.enter_context(
                running(_program(published.directory, mode, vocabulary, given), folder, start_s=START_S)
            )

        servers = [starts.submit(start, number, mode) for number, mode in enumerate(modes)]
        replicas: list[RunningVllm] = []
        for server, mode in zip(servers, modes, strict=True):
            http = stack.enter_context(httpx.Client(base_url=server.result().url, timeout=120))
            replicas.append(RunningVllm(server.result(), http, published, shared, cache, mode, vocabulary))
        yield replicas


@contextmanager
def running_on_a_gpu(vllm: str, model: Path, scratch: Path, shared: SharedSettings) -> Iterator[RunningServer]:
    """A vLLM that was built for CUDA, at the path `vllm`, on a model in bf16; most memory stays free."""
    (port,) = free_ports(1)
    options = [
        "--served-model-name",
        "base",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--max-lora-rank",
        str(MAX_RANK),
    ]
    options += ["--dtype", "bfloat16", "--max-model-len", str(CONTEXT), "--gpu-memory-utilization", "0.3"]
    program = Program(
        name="vllm",
        command=(vllm, "serve", str(model), *options, "--logprobs-mode", PROCESSED, "--enable-lora"),
        ready_url=f"http://127.0.0.1:{port}/health",
        url=f"http://127.0.0.1:{port}",
        port=port,
        env=_PLUGIN | plugin_variables(shared, scratch / "adapters"),
        stop_s=30.0,
    )
    with running(program, scratch, start_s=START_S) as server:
        yield server


def plugin_variables(shared: SharedSettings, cache: Path) -> dict[str, str]:
    """Where the plugin finds policies, and where it keeps them."""
    store = {name: value for name, value in variables(shared).items() if name.startswith("RATCHET_S3_")}
    return store | {"RATCHET_VLLM_CACHE": str(cache)}


_PLUGIN = {
    "PYTHONPATH": str(REPOSITORY / "services"),  # the plugin of this tree, whichever one vLLM's environment has
    "VLLM_PLUGINS": "ratchet",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def _program(model: Path, logprobs_mode: str, vocabulary: int, env: dict[str, str]) -> Program:
    (port,) = free_ports(1)
    options = {
        "--served-model-name": "base",
        "--host": "127.0.0.1",
        "--port": str(port),
        "--max-lora-rank": str(MAX_RANK),
        "--max-loras": "2",
        "--max-cpu-loras": "2",
        "--dtype": "float32",
        "--max-model-len": str(CONTEXT),
        "--max-logprobs": str(vocabulary),
        "--logprobs-mode": logprobs_mode,
        "--tool-call-parser": "hermes",
    }
    if ON_A_GPU:  # the replicas share it
        options["--gpu-memory-utilization"] = "0.3"
    given = [part for option in options.items() for part in option]
    return Program(
        name="vllm",
        command=(
            str(VLLM),
            "serve",
            str(model),
            *given,
            "--enable-lora",
            "--enforce-eager",
            "--enable-auto-tool-choice",
        ),
        ready_url=f"http://127.0.0.1:{port}/health",
        url=f"http://127.0.0.1:{port}",
        port=port,
        env={
            **_PLUGIN,
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            **env,
        },
        stop_s=30.0,
    )
