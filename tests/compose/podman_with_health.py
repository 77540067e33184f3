"""podman as podman-compose calls it, where no systemd runs health checks: `wait --condition=healthy` runs them itself.

Each container's first good check is a line in the file that RATCHET_TEST_HEALTH names: seconds since the epoch, name.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ITSELF = "--requires="
"""podman 4 starts nothing whose dependency has ended and had one that still runs, such as `init`."""
HEALTHY = "--condition=healthy"
KNOWS_HEALTHY = "podman version 4.6.0"
"""From here on podman-compose leaves the wait for health to podman."""


def healthy(container: str) -> bool:
    """Whether its health check passes now."""
    done = subprocess.run(["podman", "healthcheck", "run", container], capture_output=True, check=False)
    return done.returncode == 0


def wait(containers: list[str]) -> None:
    """Return once each was healthy."""
    for container in containers:
        while not healthy(container):
            time.sleep(0.5)
        with Path(os.environ["RATCHET_TEST_HEALTH"]).open("a") as journal:
            journal.write(f"{time.time()} {container}\n")


def main(words: list[str]) -> int:
    """Do what podman would."""
    if words[:1] == ["--version"]:
        sys.stdout.write(f"{KNOWS_HEALTHY}\n")
    elif words[:1] == ["wait"] and HEALTHY in words:
        wait([word for word in words[1:] if not word.startswith("--")])
    else:
        os.execvp("podman", ["podman", *(word for word in words if not word.startswith(ITSELF))])
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
