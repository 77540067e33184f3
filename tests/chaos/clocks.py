"""System clocks of services that a test may set, each by itself, while they run."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


class Clocks:
    """Clocks of the services that begin with `env`, by their health port. No compiler: no clock can be set."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._library = folder / "clock.so"
        compiler = shutil.which("cc")
        self.settable = compiler is not None
        folder.mkdir(parents=True, exist_ok=True)
        if compiler is not None:
            subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", self._library, SOURCE, "-ldl"], check=True)

    def env(self, health_ports: list[int]) -> Mapping[str, str]:
        """What services with these ports have in their environment."""
        for port in health_ports:
            self.set(port, 0)
        return {"LD_PRELOAD": str(self._library), "CHAOS_CLOCKS": str(self._folder)} if self.settable else {}

    def set(self, health_port: int, ahead_s: int) -> None:
        """From now on that service's clock is ahead of the real one by so many seconds, or behind."""
        path = self._folder / str(health_port)
        with path.open("r+b" if path.exists() else "wb") as file:  # the same file: it is mapped
            file.write(struct.pack("q", ahead_s))
