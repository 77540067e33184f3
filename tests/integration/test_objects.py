"""What is sent to the object store: nothing twice, unless the store's copy is old; and what a store does wrong."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from ratchet.core.errors import ObjectsUnavailable, Rejected
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import RESENT_AFTER, ObjectRef, Objects
from tests.support.running import prepared_objects

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Store(BaseHTTPRequestHandler):
    """Says of every object that it is there, and remembers which ones were sent all the same."""

    headers_of_all: dict[str, str]
    sent: list[str]
    answer = HTTPStatus.OK
    """To what is sent."""
    asked = HTTPStatus.OK
    """To what is asked for."""
    code = ""
    """Of the error that it is."""

    def do_HEAD(self) -> None:
        self.send_response_only(self.asked)
        for name, value in self.headers_of_all.items():
            self.send_header(name, value)
        self.end_headers()

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.sent.append(self.path)
        self.send_response(self.answer)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        """All but the end; or the error."""
        self.do_HEAD()
        self.wfile.write(f"<Error><Code>{self.code}</Code></Error>".encode() if self.code else b"weig")

    def log_message(self, *args: object) -> None:
        """Quiet."""


@contextmanager
def store(
    headers: dict[str, str], answer: HTTPStatus = HTTPStatus.OK, **answers: object
) -> Iterator[tuple[Objects, list[str]]]:
    sent: list[str] = []
    kind = type("ThisStore", (Store,), {"headers_of_all": headers, "sent": sent, "answer": answer, **answers})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Objects(SharedSettings(s3_endpoint=f"http://127.0.0.1:{server.server_port}")), sent
        finally:
            server.shutdown()
            thread.join()


def headers(age: timedelta, size: int) -> dict[str, str]:
    """What a store says of an object."""
    return {
        "Date": format_datetime(NOW, usegmt=True),
        "Last-Modified": format_datetime(NOW - age, usegmt=True),
        "Content-Length": str(size),
    }


@pytest.mark.parametrize(
    ("answer", "times"),
    [
        (headers(timedelta(minutes=5), 7), 0),
        (headers(RESENT_AFTER + timedelta(minutes=1), 7), 1),
        (headers(timedelta(minutes=5), 6), 1),
        ({name: value for name, value in headers(timedelta(minutes=5), 7).items() if name != "Date"}, 1),
    ],
    ids=["young", "old", "of another size", "a store without a clock"],
)
def test_a_file_is_sent_unless_the_store_has_a_young_copy(tmp_path: Path, answer: dict[str, str], times: int) -> None:
    (tmp_path / "file").write_bytes(b"weights")
    with store(answer) as (objects, sent):
        ref = objects.put_file(tmp_path / "file", "blobs")
    assert len(sent) == times
    assert ref == ObjectRef(f"s3://ratchet/blobs/{ref.sha256}", ref.sha256, 7)


@pytest.mark.parametrize("answer", [HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.INSUFFICIENT_STORAGE])
def test_a_store_that_takes_no_file_is_unavailable(tmp_path: Path, answer: HTTPStatus) -> None:
    (tmp_path / "file").write_bytes(b"weights")
    with (
        store(headers(timedelta(days=1), 7), answer) as (objects, _),
        pytest.raises(ObjectsUnavailable, match="blobs/"),
    ):
        objects.put_file(tmp_path / "file", "blobs")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (HTTPStatus.BAD_REQUEST, Rejected),
        (HTTPStatus.FORBIDDEN, Rejected),
        (HTTPStatus.REQUEST_TIMEOUT, ObjectsUnavailable),
        (HTTPStatus.TOO_MANY_REQUESTS, ObjectsUnavailable),
        (HTTPStatus.SERVICE_UNAVAILABLE, ObjectsUnavailable),
    ],
)
def test_what_the_store_refuses_is_final_unless_it_passes(answer: HTTPStatus, error: type[Exception]) -> None:
    empty = {"Content-Length": "0"}
    with store(empty, asked=answer) as (objects, _), pytest.raises(error, match="refused s3://ratchet/a"):
        objects.exists("s3://ratchet/a.json")


@pytest.mark.parametrize(
    ("code", "error"),
    [("AccessDenied", Rejected), ("SignatureDoesNotMatch", ObjectsUnavailable), ("ExpiredToken", ObjectsUnavailable)],
)
def test_refused_credentials_condemn_no_object(code: str, error: type[Exception]) -> None:
    with store({}, asked=HTTPStatus.FORBIDDEN, code=code) as (objects, _), pytest.raises(error, match=code):
        objects.get("s3://ratchet/a.json")


def test_a_store_that_refuses_the_bucket_is_away() -> None:
    with store({}, asked=HTTPStatus.FORBIDDEN) as (objects, _), pytest.raises(ObjectsUnavailable):
        objects.ping()


def test_store_that_breaks_off_within_file_is_unavailable_and_leaves_none(tmp_path: Path) -> None:
    with store(headers(timedelta(0), 7)) as (objects, _), pytest.raises(ObjectsUnavailable, match="blobs/a"):
        objects.get_file("s3://ratchet/blobs/a", tmp_path / "file", "0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_store_that_leads_to_itself_is_away() -> None:
    moved = {"Location": "/ratchet/a.json", "Content-Length": "0"}
    with (
        store(moved, asked=HTTPStatus.TEMPORARY_REDIRECT) as (objects, _),
        pytest.raises(ObjectsUnavailable, match=r"no answer of S3"),
    ):
        objects.exists("s3://ratchet/a.json")


def test_store_that_answers_what_is_not_of_s3_is_away() -> None:
    with store({"Last-Modified": "yesterday"}) as (objects, _), pytest.raises(ObjectsUnavailable, match="yesterday"):
        objects.exists("s3://ratchet/a.json")


def test_ping_of_a_store_that_hangs_ends_soon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        objects = Objects(SharedSettings(s3_endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}"))
        began = time.monotonic()
        with pytest.raises(ObjectsUnavailable, match="does not answer"):
            objects.ping()
        assert time.monotonic() - began < 5


def test_the_object_store_knows_how_old_its_copy_is(shared_settings: SharedSettings, tmp_path: Path) -> None:
    objects = prepared_objects(shared_settings)
    (tmp_path / "file").write_bytes(b"weights")
    ref = objects.put_file(tmp_path / "file", "blobs")
    # Another object under the same name shows that the file is not sent again.
    bucket, key = ref.uri.removeprefix("s3://").split("/", 1)
    objects._client.put_object(Bucket=bucket, Key=key, Body=b"changed")
    assert objects.put_file(tmp_path / "file", "blobs") == ref
    assert objects.get(ref.uri) == b"changed"
