"""vLLM's command with the switch of hubs that all our processes have: `-m ratchet.extras.vllm_plugin serve BASE ...`.

A plugin is too late for that: vLLM has read the environment by then.
"""

from __future__ import annotations

import os
import sys

from ratchet.core.rules.model_hub import stay_local

if __name__ == "__main__":
    stay_local()
    os.execvp("vllm", ["vllm", *sys.argv[1:]])  # noqa: S606, S607 - vLLM of the same environment; signals reach it
