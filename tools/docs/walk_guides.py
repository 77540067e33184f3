"""Runs the commands of a guide as they are printed, in order, and ends at the first that fails.

python -m tools.docs.walk_guides docs/guides/operator.md          on a new stack, in a new directory
python -m tools.docs.walk_guides docs/guides/operator.md --in DIR in that directory, where a stack may run

The commands are those of the `bash` blocks; a `python` block whose first line names a file is that file. What a page
takes for granted is given: a shell in which `ratchet` is found, the repository's `examples`, free ports.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from ratchet.local.local_stack.catalog import default_ports
from ratchet.local.local_stack.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")
SETUP = "make setup && source .venv/bin/activate"
"""What has been done where this tool runs."""


def script(page: str) -> str:
    """The commands of a page as one script of bash, which says before each block where it is."""
    return "\n".join(["set -eu", *_parts(page), ""])


def _parts(page: str) -> Iterator[str]:
    for block in BLOCK.finditer(page):
        language, text = block[1], block[2]
        line = page.count("\n", 0, block.start()) + 1
        if language == "bash":
            yield f"echo '--- line {line}'\n" + text.replace(SETUP + "\n", "")
        elif named := FILE.match(text):
            yield f"cat > {named[1]} <<'END_OF_FILE'\n{text}END_OF_FILE"


def environment(ports: Mapping[str, int]) -> dict[str, str]:
    """The shell's variables: the tools of this environment, and ports that are free."""
    own = {f"RATCHET_PORT_{name.upper()}": str(port) for name, port in ports.items()}
    path = os.pathsep.join([str(ROOT / ".venv" / "bin"), os.environ.get("PATH", os.defpath)])
    return {**os.environ, **own, "PATH": path}


def walk(page: Path, directory: Path, limit_s: float | None = None) -> int:
    """Run the page's commands in `directory`; returns the exit code of the first that failed, else 0.

    Raises `subprocess.TimeoutExpired` after `limit_s`.
    """
    names = default_ports()
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    examples = directory / "examples"
    if not examples.exists():
        examples.symlink_to(ROOT / "examples")
    command = ["bash", "-c", script(page.read_text())]
    walked = subprocess.run(command, cwd=directory, env=environment(ports), check=False, timeout=limit_s)  # noqa: S603
    code = walked.returncode
    sys.stdout.write(f"{page.name}: {'every command ended well' if code == 0 else f'ended with exit code {code}'}\n")
    return code


def main() -> int:
    """Walk the pages, each in a directory of its own unless one is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--in", dest="directory", type=Path)
    parser.add_argument("--print", action="store_true", help="Print the commands, and run none.")
    arguments = parser.parse_args()
    for page in arguments.pages:
        if arguments.print:
            sys.stdout.write(script(page.read_text()))
            continue
        with tempfile.TemporaryDirectory(prefix="guide-") as new:
            directory = arguments.directory or Path(new)
            if code := walk(page, directory.resolve()):
                if arguments.directory is None:  # its folder goes away with what runs in it
                    subprocess.run([ROOT / ".venv/bin/ratchet", "down"], cwd=new, check=False)  # noqa: S603
                else:
                    down = ("ratchet", "down", "--dir", str(directory / ".ratchet"))
                    sys.stdout.write(f"`{shlex.join(down)}` stops what still runs\n")
                return code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
