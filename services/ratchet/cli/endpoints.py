"""Where the running system is: from the environment, else from the stack's `stack.json`, else the default ports."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.embedded.catalog import SERVICES
from ratchet.embedded.orphans import is_running
from ratchet.embedded.plan import kernel_of
from ratchet.embedded.state import StackRecord, read_record

if TYPE_CHECKING:
    from ratchet.kernel.settings import KernelSettings


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The stack of a directory, if one runs there, and the environment that leads to its services."""

    directory: Path
    record: StackRecord | None
    """None when no stack runs in the directory."""
    env: Mapping[str, str]

    @property
    def kernel(self) -> KernelSettings:
        return kernel_of(self.env)

    def url(self, short: str) -> str:
        """Base url of a service by its short name, such as `coordinator`."""
        spec = next(spec for spec in SERVICES if spec.short == short)
        return self.env.get(spec.url_variable, f"http://127.0.0.1:{spec.port}").rstrip("/")


def locate(directory: Path) -> Endpoints:
    """Look for the stack of `directory`."""
    record = read_record(directory)
    if record is not None and not is_running(record.pid, record.started_at):
        record = None
    own = {name: value for name, value in os.environ.items() if name.startswith("RATCHET_")}
    return Endpoints(directory, record, {**(record.env if record else {}), **own})
