"""Makes docs/settings.md, the reference of all settings, from the classes that read them.

python -m tools.docs.settings_reference           write the page
python -m tools.docs.settings_reference --check   exit 1 when it is out of date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ratchet.core.service.openapi import member_words
from ratchet.core.service.setting_names import OTHERS, Setting, settings_in
from ratchet.core.service.settings import EnvironmentSettings, SharedSettings
from ratchet.local.local_stack.catalog import default_ports
from ratchet.local.local_stack.configuration import CLIENT, kinds

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"

HEAD = """# Settings

Generated from the classes that read them by `make docs`; do not edit.

A setting is an environment variable, or a value in the settings file. The environment wins; what neither names has its
default. The file is `ratchet.toml` in the directory where a service or `ratchet up` starts, or the one that
`RATCHET_CONFIG` names (empty: none); the Python client, which runs in agents' processes, reads none. At its top stand
the settings that all services share, and a table for each service holds its own ones; a shared setting in such a table
holds for that service alone:

```toml
log_level = "warning"

[gateway]
requests_per_minute = 600
aliases = {"gpt-4.1-mini" = "support"}

[canary_deployer]
stages = [5, 25]
stage_min_s = 3600
```

- `ratchet config show` shows what is set, and where; `ratchet config show gateway` all settings of one service.
- `ratchet config check` checks everything, and reports all that is wrong at once. `ratchet up` does the same before it
  starts anything, and so does its `--dry-run`.
- A name that does not exist is refused with the nearest one that does: in the file, and in the environment, among the
  names that begin with `RATCHET_`. For a name that resembles none, such as a plug-in's,
  `ratchet up` and `ratchet config check` print a warning.
- A secret is refused in the file, and so is an address with a user or a password: set its variable. Where a setting
  asks for the *name* of a variable (`api_key_env`), the file may hold that.
- A value that is a list or a table is JSON in a variable, and TOML's own in the file.
- `ratchet up` gives its services its own addresses, folders and secrets (`nats_url`, `clickhouse_url`, `s3_endpoint`,
  `engine_url`, `data_dir` and so on): those of the file are for services that you start yourself. The services have by
  then what the file holds; a change waits for the next `ratchet up`.
- The table `[stack]` takes the place of options of `ratchet up`: `ports` (`{nats = 4223}`), `free_ports`, `only`,
  `mlflow`, `upstream`. `port` and `health_port` of a service's own table choose its ports as well.

"""


def reference() -> str:
    """The whole page."""
    parts = [HEAD, _section("All services", "They stand at the top of the file.", SharedSettings)]
    for name, kind in kinds().items():
        title = name if name == CLIENT else f"{name}, `[{name}]`"
        parts.append(_section(title, " ".join((kind.__doc__ or "").split("\n\n")[0].split()), kind))
    others = "".join(f"| `{name}` | {_cell(words)} |\n" for name, words in sorted(OTHERS.items()))
    ports = ", ".join(f"`{name}` {port}" for name, port in default_ports().items())
    parts.append(f"## Further variables\n\n| variable | meaning |\n|---|---|\n{others}\nPorts: {ports}.\n")
    return "\n".join(parts)


def _section(title: str, words: str, kind: type[EnvironmentSettings]) -> str:
    texts = member_words(kind)
    rows = "".join(_row(setting, texts.get(setting.name, "")) for setting in settings_in(kind).values())
    return f"## {title}\n\n{words}\n\n| setting | variable | default | meaning |\n|---|---|---|---|\n{rows}"


def _row(one: Setting, words: str) -> str:
    variables = "<br>".join(f"`{variable}`" for variable in one.variables)
    bounds = ", ".join(_bounds(one))
    meaning = " ".join(part for part in (words, f"({bounds})" if bounds else "", "*Secret.*" * one.is_secret) if part)
    return f"| `{one.name}` | {variables} | {_default(one)} | {_cell(meaning)} |\n"


def _default(one: Setting) -> str:
    if one.name == "worker":  # what the machine is called
        return "host name"
    value: Any = one.field.get_default(call_default_factory=True)
    if value is None:
        return ""
    plain = TypeAdapter(object).dump_python(value, mode="json", fallback=str)
    if isinstance(value, frozenset):
        plain = sorted(plain)
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    return f"`{_cell(text)}`" if text else ""


def _bounds(one: Setting) -> Iterator[str]:
    for bound in one.field.metadata:
        for sign, name in ((">=", "ge"), (">", "gt"), ("<=", "le"), ("<", "lt")):
            if (limit := getattr(bound, name, None)) is not None:
                yield f"{sign} {limit}"


def _cell(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Write, or compare."""
    text = reference()
    if "--check" not in arguments:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        sys.stderr.write("docs/settings.md is out of date: run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
