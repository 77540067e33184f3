"""Prints how uv is to find packages, as lines for a shell: where pip finds them. Used by `make setup`.

What pip is configured for (pip.conf or PIP_*) says where packages come from, and need not be configured twice. A
variable of uv's own that is set already wins.
"""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping

SECTIONS = ("global", "install", ":env:")
"""Where pip looks for an option of `pip install`; the last one that says it counts."""

JOINED = {
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
}
"""Lists of pip: uv's variable, and what uv puts between the values."""

SINGLE = {
    "index-url": "UV_DEFAULT_INDEX",
    "no-index": "UV_NO_INDEX",
    "cert": "SSL_CERT_FILE",
    "timeout": "UV_HTTP_TIMEOUT",
}


def options(listing: str) -> dict[str, str]:
    """The options that `pip config list` shows, by name."""
    values: dict[tuple[str, str], str] = {}
    for line in listing.splitlines():
        key, separator, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if separator and section in SECTIONS:
            values[section, name.removeprefix("default-")] = str(ast.literal_eval(value))
    return {name: values[section, name] for section in SECTIONS for at, name in values if at == section}


def uv_environment(pip: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """uv's variables that say what these options of pip say; none that `environment` has."""
    chosen = {variable: pip[name] for name, variable in SINGLE.items() if pip.get(name)}
    chosen |= {variable: join.join(pip[name].split()) for name, (variable, join) in JOINED.items() if pip.get(name)}
    # pip takes the best version of all indexes together; uv by itself stops at the first index that knows a name.
    chosen["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return {name: value for name, value in chosen.items() if name not in environment}


def main() -> int:
    """Ask the pip of this interpreter."""
    asked = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    for name, value in uv_environment(options(asked.stdout), os.environ).items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
