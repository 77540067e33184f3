"""A server that answers what Argilla's client asks to read a dataset: its HTTP interface, scripted, without a store."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

KEY = "argilla.apikey"
DATASET = "answers"
_DATASET_ID, _WORKSPACE_ID, _USER_ID = (str(uuid.UUID(int=number)) for number in (101, 102, 103))
_MADE_AT = "2026-01-01T00:00:00"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a user answered to one question, as the server keeps it."""

    question: str
    value: object
    status: str
    user_id: uuid.UUID


def record(
    number: int, fields: Mapping[str, object], judgements: Sequence[Judgement], suggested: tuple[str, str]
) -> dict[str, Any]:
    """A record in the server's form: a response holds the answers of one user; `suggested`: a question, and what a
    model answered to it."""
    return {
        "id": str(uuid.UUID(int=number)),
        "external_id": str(number),
        "status": "completed",
        "fields": dict(fields),
        "metadata": {"channel": "mail"},
        "responses": [
            {
                "values": {judgement.question: {"value": judgement.value}},
                "status": judgement.status,
                "user_id": str(judgement.user_id),
            }
            for judgement in judgements
        ],
        "suggestions": [
            {"question_id": _question_id(suggested[0]), "value": suggested[1], "score": 0.9, "agent": "model"}
        ],
    }


@contextmanager
def argilla_server(
    fields: Mapping[str, Mapping[str, object]],
    questions: Mapping[str, Mapping[str, object]],
    records: Sequence[Mapping[str, Any]],
) -> Generator[str]:
    """The address of a server with one dataset: settings of its fields and questions by name, and its records."""
    dataset = {"id": _DATASET_ID, "name": DATASET, "status": "ready", "workspace_id": _WORKSPACE_ID}
    workspace = {"id": _WORKSPACE_ID, "name": "argilla", "inserted_at": _MADE_AT, "updated_at": _MADE_AT}
    documents: dict[str, object] = {
        "/api/v1/me": {"id": _USER_ID, "username": "owner", "role": "owner"},
        "/api/v1/me/workspaces": {"items": [workspace]},
        f"/api/v1/workspaces/{_WORKSPACE_ID}": workspace,
        "/api/v1/me/datasets": {"items": [dataset]},
        f"/api/v1/datasets/{_DATASET_ID}": dataset,
        f"/api/v1/datasets/{_DATASET_ID}/fields": {"items": _named(fields)},
        f"/api/v1/datasets/{_DATASET_ID}/questions": {"items": _named(questions)},
        f"/api/v1/datasets/{_DATASET_ID}/vectors-settings": {"items": []},
        f"/api/v1/me/datasets/{_DATASET_ID}/metadata-properties": {"items": []},
    }

    class Requests(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            if self.headers.get("X-Argilla-Api-Key") != KEY:
                return self._answer(401, {"detail": "not authenticated"})
            if address.path == f"/api/v1/datasets/{_DATASET_ID}/records":
                query = parse_qs(address.query)
                offset, limit = int(query["offset"][0]), int(query["limit"][0])
                return self._answer(200, {"items": records[offset : offset + limit], "total": len(records)})
            if address.path not in documents:
                return self._answer(404, {"detail": f"{address.path} is not scripted"})
            return self._answer(200, documents[address.path])

        def _answer(self, status: int, document: object) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Requests) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _question_id(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def _named(settings: Mapping[str, Mapping[str, object]]) -> list[dict[str, Any]]:
    return [
        {"id": _question_id(name), "name": name, "title": name, "settings": dict(its)} for name, its in settings.items()
    ]
