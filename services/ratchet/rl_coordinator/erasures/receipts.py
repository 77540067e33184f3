"""Signed receipts of erasures, as files: what a restored backup has forgotten is asked for again by them.

They lie in a folder of the coordinator's, beside the key that signs them (Ed25519, readable by its owner alone).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog
from nacl.exceptions import BadSignatureError

from ratchet.bus.message import Value, decode
from ratchet.core.contract.erasure import Erasure
from ratchet.core.contract.http.erasures import ReceiptOut
from ratchet.core.errors import BadRequest
from ratchet.core.service.files import PRIVATE, write_whole
from ratchet.core.service.signing_keys import signing_key
from ratchet.rl_coordinator.erasures.domain import UNREACHABLE

log = structlog.get_logger()

FOLDER, KEY = "erasures", "signing.key"


class Receipt(Value, frozen=True, kw_only=True):
    """What is signed."""

    erasure: Erasure
    """As it was then: what was removed, by place, and which policies had learned from it."""
    unreachable: list[str]
    """What no command reaches."""


@dataclass(frozen=True)
class Receipts:
    """The folder. Raises `OSError`, and `ConfigError` for a key that cannot be read."""

    folder: Path

    def keep(self, erasure: Erasure) -> ReceiptOut:
        """Write the receipt of an erasure as it is now, in the place of an earlier one."""
        body = msgspec.json.encode(Receipt(erasure=erasure, unreachable=[*UNREACHABLE]))
        key = signing_key(self.folder / KEY)
        receipt = ReceiptOut(
            receipt=body.decode(),
            signature=base64.b64encode(key.sign(body).signature).decode(),
            public_key=base64.b64encode(bytes(key.verify_key)).decode(),
        )
        path = self.folder / f"{erasure.erasure_id}.json"
        written = msgspec.json.format(msgspec.json.encode(receipt), indent=1)
        if not path.exists() or path.read_bytes() != written:
            write_whole(path, written, mode=PRIVATE)
        return receipt

    def kept(self) -> list[Erasure]:
        """The erasures of all receipts that our key has signed; others are left alone."""
        erasures: list[Erasure] = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                erasures.append(self.read(decode(path.read_bytes(), ReceiptOut)))
            except (msgspec.DecodeError, BadRequest) as error:
                log.warning("a receipt is not ours", path=str(path), reason=str(error))
        return erasures

    def read(self, receipt: ReceiptOut, *, unverified: bool = False) -> Erasure:
        """The erasure of a receipt. Raises `BadRequest` unless our key has signed it, or `unverified`."""
        try:
            if not unverified:
                signature = base64.b64decode(receipt.signature)
                signing_key(self.folder / KEY).verify_key.verify(receipt.receipt.encode(), signature)
            return decode(receipt.receipt, Receipt).erasure
        except BadSignatureError as error:
            ways = "`unverified` (`--unverified`) takes it all the same, as where the key was lost"
            raise BadRequest(
                f"another key than this installation's signed the receipt: {ways}", param="receipt"
            ) from error
        except (msgspec.DecodeError, ValueError) as error:
            raise BadRequest(f"this is no receipt of an erasure: {error}", param="receipt") from error
