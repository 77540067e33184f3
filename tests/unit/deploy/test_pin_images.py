"""`make pin-images` against a registry that asks for a token, as the public ones do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.support.compose import REPOSITORY
from tools.environment.pin_images import NAMED, files, main, pin, place

DIGEST, OTHER = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


class Registry(BaseHTTPRequestHandler):
    """Knows version 1.2 of `team/thing`."""

    def do_HEAD(self) -> None:
        host = self.headers["Host"]
        if self.headers.get("Authorization") != "Bearer good":
            self.send_response(401)
            scope = "repository:team/thing:pull"
            self.send_header("WWW-Authenticate", f'Bearer realm="http://{host}/token",service="it",scope="{scope}"')
        elif self.path == "/v2/team/thing/manifests/1.2" and "oci.image.index" in self.headers["Accept"]:
            self.send_response(200)
            self.send_header("Docker-Content-Digest", DIGEST)
        else:
            self.send_response(404)
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"token": "good" if "scope=repository" in self.path else "bad"}).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    """Its host and port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_image_gets_the_digest_of_its_tag(registry: str) -> None:
    assert pin(f"    image: {registry}/team/thing:1.2\n") == (f"    image: {registry}/team/thing:1.2@{DIGEST}\n", [])


def test_digest_that_its_tag_no_longer_has_stays_and_is_reported(registry: str) -> None:
    text = f"ARG BASE={registry}/team/thing:1.2@{OTHER}\n"

    assert pin(text) == (text, [f"{registry}/team/thing:1.2: its tag has {DIGEST} by now; {OTHER} stays"])


def test_image_that_the_registry_does_not_know_stays_as_it_is(registry: str) -> None:
    text, (line,) = pin(f"    image: {registry}/team/thing:9\n")

    assert text == f"    image: {registry}/team/thing:9\n"
    assert "gave no digest (HTTP Error 404" in line


def test_files_are_written_and_our_own_images_left_alone(registry: str, tmp_path: Path) -> None:
    (tmp_path / "docker-compose.yml").write_text(f"    image: ratchet:0.1.0\n    image: {registry}/team/thing:1.2\n")

    assert main(tmp_path) == 0
    assert (
        (tmp_path / "docker-compose.yml")
        .read_text()
        .endswith(f"ratchet:0.1.0\n    image: {registry}/team/thing:1.2@{DIGEST}\n")
    )


@pytest.mark.parametrize(
    ("image", "where"),
    [
        ("nats:2.15.0-alpine", ("registry-1.docker.io", "library/nats", "2.15.0-alpine")),
        ("prom/prometheus:v3", ("registry-1.docker.io", "prom/prometheus", "v3")),
        ("quay.io/minio/minio:1", ("quay.io", "minio/minio", "1")),
    ],
)
def test_names_lead_to_the_registries_that_docker_asks(image: str, where: tuple[str, str, str]) -> None:
    assert place(image) == where


def test_every_image_of_the_files_is_seen() -> None:
    for path in files(REPOSITORY):
        text = path.read_text()
        assert len(NAMED.findall(text)) == sum(
            line.strip().startswith(("image:", "ARG BASE=", "ARG GRAFANA=")) for line in text.splitlines()
        )
