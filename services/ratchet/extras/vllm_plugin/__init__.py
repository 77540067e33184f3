"""A plugin for vLLM: `<role>@<version>-<sha8>` is an adapter in the object store, fetched when a call first names it.

vLLM finds `register` by the entry point group `vllm.general_plugins`, in each of its processes, more than once in some.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.extras.vllm_plugin.adapters import Adapters


def register() -> None:
    """Have vLLM ask Ratchet for adapters that it does not know. Quick: nothing is read or connected before it asks."""
    from ratchet.extras.vllm_plugin import resolver  # noqa: PLC0415 - of vLLM, which only its own environment has

    if os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "0").lower() not in {"1", "true"}:
        resolver.log.warning("Ratchet finds no policies: vLLM asks only with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1")
    resolver.register(make_adapters)


def make_adapters() -> Adapters:
    """By the settings of the environment. Raises `ConfigError`."""
    from ratchet.core.service.settings import read  # noqa: PLC0415
    from ratchet.core.stores.objects import Objects  # noqa: PLC0415
    from ratchet.extras.vllm_plugin.adapters import Adapters  # noqa: PLC0415
    from ratchet.extras.vllm_plugin.settings import Settings  # noqa: PLC0415

    settings = read(Settings)
    return Adapters(Objects(settings.shared), settings.cache_directory, settings.cache_bytes)
