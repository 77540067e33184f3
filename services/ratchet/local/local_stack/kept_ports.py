"""`ports.json`: the free ports that a stack has drawn, so that its next start has the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from ratchet.core.service.files import PUBLIC, write_whole

PORTS_FILE = "ports.json"


def read_ports(directory: Path) -> dict[str, int]:
    """The ports of the last start with `--free-ports`, by name; empty where there is none that can be read."""
    with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.json.decode((directory / PORTS_FILE).read_bytes(), type=dict[str, int])
    return {}


def keep_ports(directory: Path, ports: Mapping[str, int]) -> None:
    """Remember ports, beside those of members that this start leaves out, as far as it has not given them to others.

    Raises `OSError`.
    """
    others = {name: port for name, port in read_ports(directory).items() if port not in ports.values()}
    kept = {**others, **ports}
    write_whole(directory / PORTS_FILE, msgspec.json.format(msgspec.json.encode(kept), indent=1), mode=PUBLIC)
