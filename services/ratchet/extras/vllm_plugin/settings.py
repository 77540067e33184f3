"""Settings of the plugin for vLLM."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from ratchet.core.service.settings import ServiceSettings


class Settings(ServiceSettings):
    """Read from `RATCHET_VLLM_*` environment variables of vLLM's process, and `RATCHET_S3_*`."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_VLLM_", frozen=True)

    cache: Path | None = None
    """Directory of downloaded adapters, which replicas may share; unset: `vllm` in `RATCHET_DATA_DIR`."""
    cache_bytes: int = Field(default=20 * 1024**3, ge=1)
    """Bytes of adapters kept there. Those that vLLM holds stay; of the others the least recently used go first."""

    @property
    def cache_directory(self) -> Path:
        """Where adapters are kept; an absolute path, for vLLM's workers may run elsewhere."""
        return (self.cache or self.shared.data_dir / "vllm").resolve()
