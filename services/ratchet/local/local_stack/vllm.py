"""vLLM as a program, in the place of `engine_local`: from an environment of its own, with Ratchet's plugin."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ratchet.local.local_stack.ports import LOOPBACK
from ratchet.local.local_stack.program import Program

ENVIRONMENT = ".vllm"
"""What `make vllm` makes, beside the environment of this process."""
LOGPROBS_MODE = "processed_logprobs"
START_S = 900.0
"""Deadline of its start: a minute on a quiet machine, several beside other work."""


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """One vLLM that answers for all policies, built for CPUs."""

    python: Path
    """Of its environment."""
    base: Path
    """Directory of the model that all adapters were trained on, with its chat template."""
    dtype: str
    """To compute in: what the policies are trained in (`bfloat16`, `float32`)."""
    max_rank: int
    """Of an adapter."""
    context: int
    """Tokens of a prompt and its answer together."""


def installed_vllm(prefix: Path | None = None) -> Path | None:
    """The Python of the vLLM that `make vllm` has put beside this environment; None where there is none.

    One elsewhere on the machine is not used: nothing says that it has the plugin, or that it is a version that
    `tests/vllm` has seen.
    """
    folder = (prefix or Path(sys.prefix)).parent / ENVIRONMENT / "bin"
    return folder / "python" if (folder / "vllm").is_file() else None


def vllm_engine(settings: VllmSettings, stack: Mapping[str, str], data_dir: Path, port: int) -> Program:
    """vLLM as docs/guides/vllm.md starts it without a GPU; `stack` says where the object store is."""
    options = {
        "--served-model-name": "base",
        "--host": LOOPBACK,
        "--port": str(port),
        "--dtype": settings.dtype,
        "--max-model-len": str(settings.context),
        "--max-num-seqs": "32",
        "--max-lora-rank": str(settings.max_rank),
        "--max-loras": "3",  # stable, canary, and the one before
        "--logprobs-mode": LOGPROBS_MODE,
        "--tool-call-parser": "hermes",
    }
    given = (part for option in options.items() for part in option)
    url, binaries = f"http://{LOOPBACK}:{port}", settings.python.parent.absolute()
    return Program(
        name="vllm",
        command=(
            str(binaries / settings.python.name),
            "-m",
            "ratchet.extras.vllm_plugin",
            "serve",
            str(settings.base.absolute()),
            *given,
            "--enable-lora",
            "--enforce-eager",
            "--enable-auto-tool-choice",
        ),
        ready_url=f"{url}/health",
        url=url,
        port=port,
        env={
            **stack,
            "PATH": os.pathsep.join((str(binaries), os.environ.get("PATH", os.defpath))),
            "RATCHET_DATA_DIR": str(data_dir.resolve()),
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            # As for engine_local: on cores that others use as well, one thread.
            "OMP_NUM_THREADS": "1",
        },
        directories=(data_dir,),
        stop_s=30.0,
    )
