"""What it takes to run one process of the stack, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

STOP_S = 12.0
"""Longer than a service's own shutdown deadline."""


@dataclass(frozen=True, slots=True)
class Program:
    """A command, and how to see that it is ready."""

    name: str
    command: tuple[str, ...]
    ready_url: str
    """Answers 200 when the process is ready, anything else or nothing before."""
    url: str
    """Where others reach it."""
    port: int
    health_port: int | None = None
    """Port of /healthz, /readyz and /metrics, where it has one of its own."""
    alive_url: str | None = None
    """Answers 200 when the process runs, ready or not; the same as `ready_url` where there is no difference."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to the environment of this process."""
    cwd: Path | None = None
    directories: tuple[Path, ...] = ()
    """Made before it starts."""
    files: Mapping[Path, str] = field(default_factory=dict[Path, str])
    """Written before it starts, readable by this user only."""
    leftovers: tuple[Path, ...] = ()
    """Files that it leaves behind outside its own directory; removed when it has stopped."""
    silent_s: float | None = None
    """A process that has answered nothing for this long is ended; None: as the stack's settings say."""
    stuck_s: float | None = None
    """A process that says for this long that it is not ready, on a disk with room, is started again; None: it may wait
    for others."""
    stop_s: float = STOP_S
    """From the polite signal to the other one."""
