"""Certificates of a stack's servers, and the local authority that signs them: files of a folder.

    ca.pem              key and certificate of the authority
    authorities.crt     what clients trust: the authority, and the public ones or those that SSL_CERT_FILE named
    <server>.pem        key and certificate of a server: one file, so that they are exchanged at once

Where the folder is there, the stack's connections are encrypted. Every `.pem` can be read by its owner alone.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.core.errors import BadRequest, ConfigError, NotFound
from ratchet.core.service.files import PRIVATE, write_whole

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, GeneralName

AUTHORITY, TRUSTED = "ca.pem", "authorities.crt"
AUTHORITY_DAYS, SERVER_DAYS = 3650, 365
SKEW = timedelta(hours=1)
"""Certificates begin so long before they are made: clocks differ."""
AUTHORITIES = ("SSL_CERT_FILE", "AWS_CA_BUNDLE")
"""Variables by which clients learn whom to trust: OpenSSL's and, of the object store's client, boto3's."""
LOCAL = ("localhost", "127.0.0.1", "::1")
_SERVER = re.compile(r"(?!ca\Z)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Also the name of its file; `ca` is the authority's."""


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """What a server's file says."""

    server: str
    hosts: tuple[str, ...]
    """Names and addresses that it stands for."""
    not_after: datetime
    is_ours: bool
    """Whether the folder's authority has signed it."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Those in a folder."""

    folder: Path

    @property
    def trusted(self) -> Path:
        """What clients trust."""
        return self.folder / TRUSTED

    @property
    def are_there(self) -> bool:
        """Whether there is an authority."""
        return (self.folder / AUTHORITY).exists()

    def file(self, server: str) -> Path:
        """A server's key and certificate."""
        return self.folder / f"{server}.pem"

    def used(self, server: str) -> Path | None:
        """The file of a server that is to end TLS. Raises `ConfigError` where it is missing beside an authority."""
        if not self.are_there:
            return None
        if not self.file(server).exists():
            raise ConfigError(f"{self.folder} has no certificate of {server}: `ratchet certs make` makes it")
        return self.file(server)

    def make(self, servers: Iterable[str], hosts: Sequence[str], now: datetime, days: int = SERVER_DAYS) -> list[str]:
        """Make the authority, and certificates that are missing or lack a host; which servers have got one.

        Raises `BadRequest` for what is no name of a server, or no host, `ConfigError` or `OSError`.
        """
        servers = [*servers]
        for server in servers:
            if not _SERVER.fullmatch(server):
                raise BadRequest(f"{server!r} is no name of a server: letters, digits, . - and _, up to 64 of them")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.are_there:
            self._make_authority(now)
        named: list[str] = []
        for server in servers:
            known = self.read(server).hosts if self.file(server).exists() else ()
            if not known or not {*hosts} <= {*known}:
                self.sign(server, [*(known or (*LOCAL, server)), *hosts], now, days)
                named.append(server)
        return named

    def renew(self, servers: Iterable[str], now: datetime, days: int = SERVER_DAYS) -> None:
        """Give servers a new key and certificate for the hosts that they stand for. Raises as `read` does."""
        for server in servers:
            self.sign(server, self.read(server).hosts, now, days)

    def servers(self) -> list[str]:
        """Those that have a certificate."""
        return sorted(path.stem for path in self.folder.glob("*.pem") if path.name != AUTHORITY)

    def read(self, server: str) -> ServerCertificate:
        """A server's certificate. Raises `NotFound` or `ConfigError`."""
        from cryptography import x509  # noqa: PLC0415 - `--help` does not pay for it
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415

        if server not in self.servers():
            raise NotFound(f"{self.folder} has no certificate of {server}; there are {', '.join(self.servers())}")
        certificate, (_, authority) = self._load(self.file(server))[1], self._load(self.folder / AUTHORITY)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        try:
            certificate.verify_directly_issued_by(authority)
            is_ours = True
        except (InvalidSignature, ValueError):
            is_ours = False
        hosts = tuple(str(name.value) for name in names)
        return ServerCertificate(server, hosts, certificate.not_valid_after_utc, is_ours)

    def _make_authority(self, now: datetime) -> None:
        import certifi  # noqa: PLC0415 - as above

        pem = _signed("Ratchet local authority", [], None, now, AUTHORITY_DAYS)
        write_whole(self.folder / AUTHORITY, pem, mode=PRIVATE)
        others = Path(os.environ.get(AUTHORITIES[0]) or certifi.where())
        write_whole(self.trusted, pem[pem.index(b"-----BEGIN CERT") :] + others.read_bytes())

    def sign(self, server: str, hosts: Sequence[str], now: datetime, days: int) -> None:
        """Give a server a new key and certificate, for these hosts alone. Raises as `make` does."""
        authority = self._load(self.folder / AUTHORITY)
        write_whole(self.file(server), _signed(server, hosts, authority, now, days), mode=PRIVATE)

    def _load(self, path: Path) -> tuple[EllipticCurvePrivateKey, Certificate]:
        from cryptography import x509  # noqa: PLC0415 - as above
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey  # noqa: PLC0415
        from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

        try:
            pem = path.read_bytes()
            key = load_pem_private_key(pem, None)
            certificate = x509.load_pem_x509_certificate(pem)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read as a key and its certificate: {error}") from error
        if not isinstance(key, EllipticCurvePrivateKey):
            raise ConfigError(f"{path} has a key of another kind than `ratchet certs make` makes")
        return key, certificate


def _signed(
    name: str,
    hosts: Sequence[str],
    authority: tuple[EllipticCurvePrivateKey, Certificate] | None,
    now: datetime,
    days: int,
) -> bytes:
    """A new key and its certificate; without an `authority`: one that is an authority itself."""
    from cryptography import x509  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat  # noqa: PLC0415
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # noqa: PLC0415

    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer, issuer = (key, subject) if authority is None else (authority[0], authority[1].subject)
    made = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=0 if authority is None else None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False)
    )
    if authority is None:
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        made = made.add_extension(usage, True)
    else:
        made = made.add_extension(x509.SubjectAlternativeName([*map(_host, dict.fromkeys(hosts))]), False)
        made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    certificate = made.sign(signer, SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private + certificate.public_bytes(Encoding.PEM)


def _host(text: str) -> GeneralName:
    from cryptography import x509  # noqa: PLC0415 - as above

    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError as error:
        raise BadRequest(f"{text!r} is no host name and no address") from error


def certificates_of(stack: Path) -> Certificates:
    """Those of the local stack in a directory."""
    return Certificates(stack.resolve() / "data" / "tls")
