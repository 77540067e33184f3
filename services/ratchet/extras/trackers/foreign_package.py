"""Trackers that are packages of an environment of their own: each run is written by a program that knows one of them.

The packages bound the versions of what Ratchet uses, and start processes and threads. So their interpreter runs
`recorders/<package>_recorder.py`, which gets one run as JSON on its standard input and ends. It sees none of Ratchet's
settings and no key, so that nothing leaves the machine.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ratchet.bus.kv import Entry
from ratchet.core.contract.state import ENDED, Job, PolicyVersion, Route
from ratchet.core.errors import NotFound, Rejected, Unavailable
from ratchet.core.stores.policies import BlobStore
from ratchet.extras.trackers.domain import RunDocument, run_document
from ratchet.extras.trackers.settings import Settings
from ratchet.extras.trackers.trackers.base import Tracker

RECORDERS = Path(__file__).parent / "recorders"
LONGEST_S = 300.0
"""For one run: the packages start processes of their own, which wait for each other."""
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")
"""What a recorder sees of our environment."""


@dataclass(frozen=True, slots=True)
class Package:
    """A tracker's package."""

    name: str
    python: str
    """The interpreter that has it."""
    directory: Path
    """Where it keeps its files."""
    environment: Mapping[str, str]

    async def record(self, run: RunDocument) -> None:
        """Have a run written, unless it is there. Raises `Unavailable` or `Rejected` with the package's own reason."""
        self.directory.mkdir(parents=True, exist_ok=True)
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        try:
            process = await asyncio.create_subprocess_exec(
                self.python,
                "-I",
                str(RECORDERS / f"{self.name}_recorder.py"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=kept | dict(self.environment),
                cwd=self.directory,
            )
        except OSError as error:
            raise Unavailable(f"{self.name}: cannot run {self.python}: {error.strerror}") from error
        try:
            async with asyncio.timeout(LONGEST_S):
                _, errors = await process.communicate(msgspec.json.encode(run))
        except TimeoutError as error:
            raise Unavailable(f"{self.name} did not record a run within {LONGEST_S:g} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            lines = errors.decode(errors="replace").strip().splitlines()
            raise Rejected(f"{self.name}: {lines[-1][:500] if lines else f'exit status {process.returncode}'}")


class FilesTracker:
    """See `Tracker`: runs alone, for these packages keep no registry on one machine, and once a job has ended."""

    def __init__(self, package: Package, objects: BlobStore, prefix: str) -> None:
        self._package = package
        self._objects = objects
        self._prefix = prefix

    async def copy_job(self, job: Job) -> None:
        """See `Tracker`. The curve is that of the job's last attempt; a job without one has no run."""
        uri = job.artifacts.training_curves if job.artifacts else None
        if job.state not in ENDED or uri is None:
            return
        try:
            lines = await asyncio.to_thread(self._objects.get, uri)
        except NotFound:
            return  # collected since
        run = run_document(job, self._prefix, lines)
        if run is not None and run.steps:
            await self._package.record(run)

    async def copy_role(self, role: str, policies: Sequence[Entry[PolicyVersion]], route: Entry[Route] | None) -> None:
        """See `Tracker`: there is nothing to bring anywhere."""


async def trackio(settings: Settings, objects: BlobStore, _: AsyncExitStack) -> Tracker | None:
    """trackio, of the interpreter in `RATCHET_TRACKER_TRACKIO_PYTHON`: runs in SQLite on this machine."""
    offline = {"HF_HUB_OFFLINE": "1"}
    return _tracker("trackio", settings.trackio_python, "TRACKIO_DIR", offline, settings, objects)


async def wandb(settings: Settings, objects: BlobStore, _: AsyncExitStack) -> Tracker | None:
    """Weights & Biases, of the interpreter in `RATCHET_TRACKER_WANDB_PYTHON`, offline: a run in a directory.

    `wandb sync` uploads it when a person runs it. Ratchet itself sends nothing there: it takes no API key.
    """
    return _tracker("wandb", settings.wandb_python, "WANDB_DIR", {"WANDB_MODE": "offline"}, settings, objects)


def _tracker(
    name: str, python: str | None, variable: str, offline: Mapping[str, str], settings: Settings, objects: BlobStore
) -> Tracker | None:
    """`variable` tells the package its directory."""
    if python is None:
        return None
    directory = settings.shared.data_dir / name
    package = Package(name, python, directory, {variable: str(directory), **offline})
    return FilesTracker(package, objects, settings.prefix)
