"""vLLM itself as a process of its own, with a tiny model and an exported adapter: what `make vllm` has installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from ratchet.local_stack.ports import free_ports
from ratchet.local_stack.program import Program
from ratchet.stores.policy_files import export_policy
from tests.support.blobs import MemoryBlobs
from tests.support.engine_process import Published, publish_in
from tests.support.servers import running

VLLM = Path(__file__).parents[2] / ".vllm" / "bin" / "vllm"
ROLE = "support"
HIDDEN = 128
"""Dimensions of the model: vLLM has no attention for heads of fewer than 32 on CPUs."""


@dataclass(frozen=True)
class RunningVllm:
    """vLLM, ready to answer for `model`."""

    http: httpx.Client
    model: str
    """The adapter's name."""
    published: Published
    logprobs_mode: str
    vocabulary: int
    exported: Path

    def load(self, name: str) -> None:
        """Load the export by hand, under this name."""
        body = {"lora_name": name, "lora_path": str(self.exported / "model")}
        loaded = self.http.post("/v1/load_lora_adapter", json=body)
        assert loaded.status_code == 200 or "already been loaded" in loaded.text, loaded.text


@contextmanager
def running_vllm(scratch: Path, logprobs_mode: str) -> Iterator[RunningVllm]:
    """A plain start as docs/guides/vllm.md has it, and the export of a policy loaded by hand. It takes minutes."""
    blobs = MemoryBlobs()
    published = publish_in(blobs, scratch, ROLE, HIDDEN)
    vocabulary: int = msgspec.json.decode((published.directory / "config.json").read_bytes())["vocab_size"]
    export_policy(blobs, published.adapter.uri, scratch / "export", published.adapter.digest)
    with (
        running(_program(published.directory, logprobs_mode, vocabulary), scratch) as server,
        httpx.Client(base_url=server.url, timeout=120) as http,
    ):
        name = f"{ROLE}@1-{published.adapter.digest[:8]}"
        vllm = RunningVllm(http, name, published, logprobs_mode, vocabulary, scratch / "export")
        vllm.load(name)
        yield vllm


def _program(model: Path, logprobs_mode: str, vocabulary: int) -> Program:
    (port,) = free_ports(1)
    options = {
        "--served-model-name": "base",
        "--host": "127.0.0.1",
        "--port": str(port),
        "--max-lora-rank": "32",
        "--dtype": "float32",
        "--max-model-len": "512",
        "--max-logprobs": str(vocabulary),
        "--logprobs-mode": logprobs_mode,
        "--tool-call-parser": "hermes",
    }
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
            "VLLM_PLUGINS": "",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        },
        stop_s=30.0,
    )
