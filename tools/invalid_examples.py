"""The invalid examples of the contracts as documents: each is a valid example with a patch that breaks one rule.

python tools/invalid_examples.py DIRECTORY   write each one to DIRECTORY/<schema>/<place>.<keyword broken>.json
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "contracts" / "examples"


def invalid_examples(directory: Path) -> dict[str, Any]:
    """The invalid examples of one schema by name, as `invalid.json` in its directory of examples describes them.

    Raises `ValueError` when two have the same name, `LookupError` when a patch does not fit its valid example.
    """
    described = json.loads((directory / "invalid.json").read_text(), object_pairs_hook=_members)
    return {name: _broken(directory, case) for name, case in described.items()}


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError(f"a name stands twice among {', '.join(name for name, _ in pairs)}")
    return members


def _broken(directory: Path, case: Mapping[str, Any]) -> Any:
    valid = json.loads((directory / "valid" / f"{case['from']}.json").read_text())
    return patched(valid, case["patch"])


def patched(document: Any, patch: Sequence[Mapping[str, Any]]) -> Any:
    """A copy of `document` after the `add`, `remove` and `replace` operations of a JSON Patch (RFC 6902).

    Raises `LookupError` for a place or an operation that does not exist.
    """
    changed = copy.deepcopy(document)
    for operation in patch:
        if operation["path"] == "":
            changed = _whole(operation)
            continue
        *parents, last = operation["path"].removeprefix("/").split("/")
        holder = changed
        for part in parents:
            holder = holder[_key(holder, part)]
        _OPERATIONS[operation["op"]](holder, _key(holder, last), operation.get("value"))
    return changed


def _whole(operation: Mapping[str, Any]) -> Any:
    """What takes the place of the whole document."""
    if operation["op"] not in ("add", "replace"):
        raise LookupError(f"{operation['op']} of the whole document leaves none")
    return operation["value"]


def _key(holder: Any, part: str) -> str | int:
    return int(part) if isinstance(holder, list) else part.replace("~1", "/").replace("~0", "~")


def _add(holder: Any, key: Any, value: Any) -> None:
    if isinstance(holder, list):
        holder.insert(key, value)
    else:
        holder[key] = value


def _remove(holder: Any, key: Any, _: Any) -> None:
    del holder[key]


def _replace(holder: Any, key: Any, value: Any) -> None:
    if isinstance(holder, dict) and key not in holder:
        raise KeyError(key)
    holder[key] = value


_OPERATIONS = {"add": _add, "remove": _remove, "replace": _replace}


def main() -> None:
    """Write every invalid example as a file."""
    parser = argparse.ArgumentParser(description="Writes the invalid examples of the contracts as files.")
    parser.add_argument("directory", type=Path, help="where to write them")
    target: Path = parser.parse_args().directory
    for directory in sorted(EXAMPLES.iterdir()):
        folder = target / directory.name
        folder.mkdir(parents=True, exist_ok=True)
        for name, document in invalid_examples(directory).items():
            (folder / f"{name}.json").write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
