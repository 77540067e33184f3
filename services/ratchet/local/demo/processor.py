"""What the demo has to know of the processor: whether it multiplies in bfloat16 by itself."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_MULTIPLIES = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of x86 and of ARM. Without one, bfloat16 is computed by way of float32, and is slower than it."""


def multiplies_bfloat16(cpu_info: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the first processor says so; not where there is no such file."""
    with suppress(OSError):
        for line in cpu_info.read_text().splitlines():
            name, _, flags = line.partition(":")
            if name.strip().lower() in {"flags", "features"}:
                return not _MULTIPLIES.isdisjoint(flags.split())
    return False
