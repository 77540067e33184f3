"""The addresses of the running system: from the environment, else from the stack's `stack.json`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ratchet.cli.exit_codes import NoStack
from ratchet.cli.output import follow_up
from ratchet.local.local_stack.catalog import ALL_SERVICES, ANALYST, WORKFLOWS
from ratchet.local.local_stack.certificates import AUTHORITIES
from ratchet.local.local_stack.orphans import is_running, living
from ratchet.local.local_stack.state import StackRecord, read_record

ADDRESSES = (
    "RATCHET_NATS_URL",
    "RATCHET_CLICKHOUSE_URL",
    "RATCHET_S3_ENDPOINT",
    *(spec.url_variable for spec in ALL_SERVICES if spec.port is not None),
)
"""Any of these in the environment means that a system runs; addresses that are not set are the usual ports."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The stack of a directory, if one runs there, and the environment that leads to its services."""

    directory: Path
    record: StackRecord | None
    """None when no stack runs in the directory."""
    env: Mapping[str, str]
    orphans: Mapping[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Members whose supervisor is gone, with their pids that still run."""

    @property
    def known(self) -> bool:
        """Whether a system runs."""
        return self.record is not None or any(name in self.env for name in ADDRESSES)

    def url(self, short: str) -> str:
        """Base url of a service by its short name, such as `coordinator`. Raises `NoStack`."""
        self.require()
        spec = next(spec for spec in ALL_SERVICES if spec.short == short)
        given, record = self.env.get(spec.url_variable), self.record
        if record is not None and spec.name not in record.services and given == record.env.get(spec.url_variable):
            again = f": `ratchet down`, then `ratchet up --{spec.name}`" if spec in (ANALYST, WORKFLOWS) else ""
            raise NoStack(f"{spec.name} is not part of the stack in {self.directory}{again}")
        return self.env.get(spec.url_variable, f"http://127.0.0.1:{spec.port}").rstrip("/")

    def require(self) -> None:
        """Raise `NoStack` unless a system runs."""
        if not self.known:
            raise NoStack(self.absence())

    def absence(self) -> str:
        """Why no system is known, and what to do."""
        if self.orphans:
            pids = ", ".join(f"{name} {' '.join(map(str, pids))}" for name, pids in self.orphans.items())
            down = follow_up("down", directory=self.directory)
            return f"the supervisor of {self.directory} is gone, its processes still run ({pids}): `{down}` ends them"
        return f"no stack runs in {self.directory}: `{follow_up('up', directory=self.directory)}` starts one"


def locate(directory: Path) -> Endpoints:
    """The endpoints of the stack of `directory`, and of the environment."""
    record, orphans = read_record(directory), dict[str, list[int]]()
    if record is not None and not is_running(record):
        record, orphans = None, living(record)
    trusted = record.env if record is not None else {}
    for name in AUTHORITIES:
        if name in trusted:  # for the libraries that this process uses
            os.environ[name] = trusted[name]
    own = {name: value for name, value in os.environ.items() if name.startswith("RATCHET_")}
    return Endpoints(directory, record, {**(record.env if record else {}), **own}, orphans)
