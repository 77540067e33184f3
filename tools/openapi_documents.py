"""Writes the OpenAPI documents of the control APIs, those of coordinator, deployer and console, from their code.

python tools/openapi_documents.py           write contracts/http/<service>.openapi.json
python tools/openapi_documents.py --check   exit 1 when a document is out of date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratchet.canary_deployer.http_api import Api
from ratchet.console.http_api import Subjects as ConsoleSubjects, console_api
from ratchet.console.records import Records
from ratchet.rl_coordinator.http import Subjects, http_app

ROOT = Path(__file__).resolve().parents[1]
HTTP = ROOT / "contracts" / "http"
UNUSED: Any = None
"""Stands for the collaborators of routes: describing the routes uses none of them."""
RECORDS = Records(trajectories=UNUSED, tokens=UNUSED, rollouts=UNUSED, training=UNUSED, annotation=UNUSED)
CONSOLE = ConsoleSubjects(loop=UNUSED, events=UNUSED, records=RECORDS)


def documents() -> Mapping[str, Mapping[str, Any]]:
    """Service -> the document that it serves at /openapi.json."""
    subjects = Subjects(jobs=UNUSED, registry=UNUSED, triggers=UNUSED, storage=UNUSED, keys=UNUSED)
    return {
        "coordinator": http_app({}, subjects, UNUSED).openapi(),
        "deployer": Api(UNUSED, UNUSED, UNUSED, UNUSED).app().openapi(),
        "console": console_api(CONSOLE).openapi(),
    }


def main(arguments: list[str]) -> int:
    """Write, or compare."""
    stale = False
    for service, document in documents().items():
        file, text = HTTP / f"{service}.openapi.json", json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        if "--check" not in arguments:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            sys.stderr.write(f"{file.relative_to(ROOT)} is out of date: run `make docs`\n")
            stale = True
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
