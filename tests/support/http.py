"""HTTP as tests speak it."""

from __future__ import annotations

from typing import Any

import httpx

PATIENCE_S = 60.0
"""httpx gives up after 5 s, which a busy machine may need."""


def http_client(**options: Any) -> httpx.AsyncClient:
    """A client that waits as long as a busy machine needs; `options` are httpx's."""
    return httpx.AsyncClient(timeout=PATIENCE_S, **options)
