"""What every training imports, imported once in the fork server (`fork_server`), for all that are forked from it.

It touches no GPU and does nothing else. A module that cannot be imported is named in the worker's log; the trainings
then import it themselves, or say in their status that they cannot.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path

from ratchet.core.rules.algorithms import BUILT_IN
from ratchet.trainer_worker.child_process import library_environment

MODULES = (
    "torch",
    "transformers",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
    "peft",
    "peft.utils.transformers_weight_conversion",
    "ratchet.trainer_worker.training.child_run",
    *(algorithm.train.partition(":")[0] for algorithm in BUILT_IN if algorithm.trains_weights),
)
"""A model class that is missing here is imported by the training."""
QUIET = {
    "HF_DEACTIVATE_ASYNC_LOAD": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""Keeps libraries from starting threads and CUDA, after which a process cannot be forked."""


def import_all() -> str | None:
    """Import them. Returns why trainings must not be forked from this process; None when they may."""
    environment = library_environment(os.environ) | QUIET
    os.environ.clear()
    os.environ.update(environment)
    for module in MODULES:
        try:
            import_module(module)
        except Exception:  # noqa: BLE001 - the boundary of what only saves time
            print(f"the fork server cannot import {module}; trainings try it themselves", file=sys.stderr)  # noqa: T201
            traceback.print_exc()
    gc.collect()
    # What exists now is shared with every child: a collection that touched it would copy it.
    gc.freeze()
    threads = len(list(Path("/proc/self/task").iterdir()))
    return f"the imports started {threads - 1} threads" if threads > 1 else None


unfit = import_all()
if unfit:
    print(f"trainings start in fresh processes: {unfit}", file=sys.stderr)  # noqa: T201
