"""Certificates of a stack: an authority, a file for each server, what is good and what is not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ratchet.core.errors import BadRequest, ConfigError, NotFound
from ratchet.local.local_stack.certificates import LOCAL, Certificates

NOW = datetime(2026, 11, 29, tzinfo=UTC)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    made = Certificates(tmp_path / "tls")
    made.make(["nats", "gateway"], ["ratchet.example.com", "10.0.0.7"], NOW)
    return made


def test_certificate_names_its_hosts_and_its_end(certificates: Certificates) -> None:
    read = certificates.read("nats")
    assert read.hosts == (*LOCAL, "nats", "ratchet.example.com", "10.0.0.7")
    assert (read.not_after, read.is_ours) == (NOW + timedelta(days=365), True)


def test_keys_are_readable_by_their_owner_alone(certificates: Certificates) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in certificates.folder.glob("*.pem")}
    assert modes == dict.fromkeys(("ca.pem", "nats.pem", "gateway.pem"), 0o600)
    assert b"PRIVATE" not in certificates.trusted.read_bytes()


def test_making_again_adds_what_is_missing_and_keeps_the_rest(certificates: Certificates) -> None:
    before = certificates.file("nats").read_bytes()
    assert certificates.make(["nats", "s3"], (), NOW) == ["s3"]
    assert certificates.file("nats").read_bytes() == before
    assert certificates.read("s3").is_ours


def test_renewal_exchanges_the_key_and_keeps_the_hosts(certificates: Certificates) -> None:
    before, hosts = certificates.file("nats").read_bytes(), certificates.read("nats").hosts
    certificates.renew(["nats"], NOW + timedelta(days=300))
    read = certificates.read("nats")
    assert (read.hosts, read.not_after) == (hosts, NOW + timedelta(days=665))
    assert certificates.file("nats").read_bytes() != before


def test_certificate_of_another_authority_is_foreign(certificates: Certificates, tmp_path: Path) -> None:
    other = Certificates(tmp_path / "other")
    other.make(["nats"], (), NOW)
    certificates.file("nats").write_bytes(other.file("nats").read_bytes())
    assert not certificates.read("nats").is_ours


def test_missing_or_damaged_certificate_is_named(certificates: Certificates, tmp_path: Path) -> None:
    assert Certificates(tmp_path / "none").used("nats") is None
    with pytest.raises(ConfigError, match="no certificate of s3"):
        certificates.used("s3")
    with pytest.raises(NotFound, match="there are gateway, nats"):
        certificates.read("s3")
    certificates.file("nats").write_text("-----BEGIN")
    with pytest.raises(ConfigError, match=r"nats\.pem cannot be read"):
        certificates.read("nats")
    with pytest.raises(BadRequest, match="no host name"):
        certificates.make(["s3"], ["käse.example"], NOW)


@pytest.mark.parametrize("name", ["", "ca", "../nats", "a b", "n" * 65])
def test_what_is_no_name_of_a_server_gets_no_certificate(tmp_path: Path, name: str) -> None:
    made = Certificates(tmp_path / "tls")
    with pytest.raises(BadRequest, match="is no name of a server"):
        made.make(["nats", name], (), NOW)
    assert not made.are_there


def test_a_further_host_is_added_to_a_certificate_that_is_there(certificates: Certificates) -> None:
    assert certificates.make(["nats", "gateway"], ["10.0.0.7"], NOW) == []
    assert certificates.make(["nats"], ["new.example.com"], NOW) == ["nats"]
    assert certificates.read("nats").hosts == (*LOCAL, "nats", "ratchet.example.com", "10.0.0.7", "new.example.com")
