"""Large bodies of an agent's messages: the gateway takes them to the object store, which agents have no key for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.core.errors import NotFound, RatchetError, Rejected, Unavailable

if TYPE_CHECKING:
    from ratchet.client.training import Listener

PUT_S = 60.0
"""For one body of some megabytes."""


class GatewayBodies:
    """Keeps bodies for a client's `Bus`."""

    def __init__(self, gateway: Listener) -> None:
        self._gateway = gateway

    async def put(self, place: str, sha256: str, body: bytes) -> None:
        """See `Bodies`. Raises `Rejected` with the gateway's words, also where it does not know such a path."""
        from ratchet.core.service.http_client import AsyncApiClient, Peer, bearer  # noqa: PLC0415 - few agents need it

        key = self._gateway.api_key.get_secret_value() if self._gateway.api_key else None
        async with AsyncApiClient(Peer(self._gateway.name, self._gateway.url, bearer(key), PUT_S)) as client:
            query, headers = {"role": place or None}, {"content-type": "application/octet-stream"}
            reply = await client.exchange("PUT", f"/v1/bodies/{sha256}", body=body, query=query, headers=headers)
        try:
            client.content_of(reply)
        except Unavailable:
            raise
        except RatchetError as error:
            raise Rejected(f"the gateway does not keep a body of {len(body)} bytes: {error}") from error

    async def get(self, place: str, sha256: str) -> bytes:
        """Agents read no events."""
        raise NotFound(f"an agent reads no body: {place}/{sha256}")
