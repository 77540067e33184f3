"""Keys with which a program signs what others may doubt later (Ed25519)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from nacl.signing import SigningKey

from ratchet.core.errors import ConfigError
from ratchet.core.service.files import PRIVATE


def signing_key(path: Path) -> SigningKey:
    """The key in a file, 32 bytes in hexadecimal that its owner alone can read; made where there is none.

    Of two processes that make it the first one counts. Raises `ConfigError`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        if not path.exists():
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
            with os.fdopen(descriptor, "w") as file:
                file.write(SigningKey.generate().encode().hex())
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                path.hardlink_to(fresh)
            fresh.unlink()
        return SigningKey(bytes.fromhex(path.read_text().strip()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the key {path}, which signs, cannot be read or made: {error}") from error
