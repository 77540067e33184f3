"""Ratchet: the learning loop for teams that run LLM agents in production."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratchet.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> Any:
    """Import the client only when it is asked for: services do not need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ratchet import client  # noqa: PLC0415

    return getattr(client, name)
