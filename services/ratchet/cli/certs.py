"""`ratchet certs`: a local authority and the certificates of a stack's servers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ratchet.cli.audited import record_change
from ratchet.cli.options import HERE, AsJson, Directory, DryRun
from ratchet.cli.output import print_answer, print_dry_run, print_table
from ratchet.local.local_stack.catalog import ALL_SERVICES, SERVERS
from ratchet.local.local_stack.certificates import SERVER_DAYS, Certificates, certificates_of
from ratchet.local.local_stack.orphans import reload_broker
from ratchet.local.local_stack.state import read_record

app = typer.Typer(no_args_is_help=True)

NAMES = (*SERVERS, *(spec.name for spec in ALL_SERVICES if spec.port is not None))
Folder = Annotated[
    Path | None, typer.Option(help="The folder with the certificates; by default that of the stack, data/tls.")
]
Days = Annotated[int, typer.Option(min=1, max=825, help="How long the certificates are good.")]
Servers = Annotated[list[str] | None, typer.Argument(help="Servers; by default all of a stack.")]


class CertificateOut(msgspec.Struct, frozen=True, kw_only=True):
    """A server's certificate."""

    server: str
    hosts: tuple[str, ...]
    not_after: datetime
    state: str
    """`good`, `expired`, or `foreign`: another authority has signed it."""
    file: str


class CertificatesOut(msgspec.Struct, frozen=True, kw_only=True):
    """The certificates in a folder."""

    authorities: str
    """What clients trust: `SSL_CERT_FILE`, and `AWS_CA_BUNDLE`."""
    certificates: list[CertificateOut]


@app.command()
def make(
    servers: Servers = None,
    host: Annotated[
        list[str] | None, typer.Option(help="A further name or address of the servers; may be repeated.")
    ] = None,
    days: Days = SERVER_DAYS,
    folder: Folder = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Make a local authority and the certificates that are missing. From its next start the stack speaks TLS alone."""
    certificates, named = _certificates(folder, directory), servers or [*NAMES]
    if dry_run:
        print_dry_run(f"make certificates in {certificates.folder}", {"servers": named, "hosts": host or []}, as_json)
        return
    record_change(directory, "make_certificates", named)
    certificates.make(named, host or (), datetime.now(UTC), days)
    _print(certificates, as_json)


@app.command("list")
def list_certificates(folder: Folder = None, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """List the certificates, for which hosts they stand and until when they are good."""
    _print(_certificates(folder, directory), as_json)


@app.command()
def renew(
    servers: Servers = None,
    days: Days = SERVER_DAYS,
    folder: Folder = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Give servers new keys and certificates; connections that are open stay.

    The broker and Ratchet's own servers show them within seconds, the object store from its next start.
    """
    certificates = _certificates(folder, directory)
    named = servers or certificates.servers()
    if dry_run:
        print_dry_run(f"renew certificates in {certificates.folder}", {"servers": named}, as_json)
        return
    for server in named:
        certificates.read(server)
    record_change(directory, "renew_certificates", named)
    certificates.renew(named, datetime.now(UTC), days)
    reload_broker(read_record(directory) if folder is None else None)
    _print(certificates, as_json)


def _certificates(folder: Path | None, directory: Path) -> Certificates:
    return certificates_of(directory) if folder is None else Certificates(folder)


def _print(certificates: Certificates, as_json: bool) -> None:
    now, shown = datetime.now(UTC), list[CertificateOut]()
    for name in certificates.servers():
        read = certificates.read(name)
        state = "foreign" if not read.is_ours else "expired" if read.not_after <= now else "good"
        shown.append(
            CertificateOut(
                server=name,
                hosts=read.hosts,
                not_after=read.not_after,
                state=state,
                file=str(certificates.file(name)),
            )
        )
    rows = [
        (certificate.server, certificate.state, certificate.not_after, " ".join(certificate.hosts), certificate.file)
        for certificate in shown
    ]
    columns = ("server", "state", "good until", "hosts", "file")
    document = CertificatesOut(authorities=str(certificates.trusted), certificates=shown)
    print_answer(document, as_json, lambda: print_table(columns, rows, "no certificates yet"))
