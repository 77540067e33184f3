"""Types of settings: the ports and addresses that a program can use, and no others."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from ratchet.bus.settings import without_user


def _http_address(url: str) -> str:
    """Raises `ValueError` for an address that no client could use, without the password in it."""
    try:
        parts = urlsplit(url.strip())
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of a port that is no number, for example
        usable = False
    if not usable:
        raise ValueError(f"{without_user(url)!r} is no address of a server, such as http://127.0.0.1:8080")
    return url


def _http_address_if_any(url: str | None) -> str | None:
    return _http_address(url) if url else url


Port = Annotated[int, Field(ge=0, le=65535)]
"""A port that a server listens on; 0 picks a free one."""
HttpAddress = Annotated[str, AfterValidator(_http_address)]
"""The URL of a server of HTTP."""
OptionalHttpAddress = Annotated[str | None, AfterValidator(_http_address_if_any)]
"""The same; absent or empty where there is no such server."""
