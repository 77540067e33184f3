"""TLS of our own HTTP servers: a certificate from a file, which is read again when it is renewed."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import structlog

from ratchet.core.errors import ConfigError
from ratchet.core.service.files import FileState, state_of

log = structlog.get_logger()

LOOK_S = 5.0
"""How soon a renewed certificate counts for new connections; open ones keep theirs."""


class ServerCertificate:
    """A PEM file with a key and its certificate, and the context of the server that shows it."""

    def __init__(self, file: Path) -> None:
        """Raises `ConfigError` where it cannot be read."""
        self._file = file
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            self._state = self._load()
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the certificate {file} cannot be read: {error}") from error

    def _load(self) -> FileState:
        state = state_of(self._file)
        self.context.load_cert_chain(self._file)
        return state

    async def follow(self) -> None:
        """Read the file again whenever it has changed; what cannot be read then leaves the certificate as it was."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                if state_of(self._file) != self._state:
                    self._state = self._load()
                    log.info("certificate renewed", file=str(self._file))
            except (OSError, ssl.SSLError) as error:
                log.warning("the renewed certificate cannot be read", file=str(self._file), reason=str(error))
