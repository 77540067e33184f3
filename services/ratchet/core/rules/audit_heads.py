"""Heads of audit chains: the newest entry at a moment, signed with Ed25519."""

from __future__ import annotations

from datetime import datetime

import msgspec
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from ratchet.core.contract.audit import AuditEntry, AuditHead


def signed_head(entry: AuditEntry, key: SigningKey, at: datetime) -> AuditHead:
    """The head that says that a chain ends with this entry, which is sealed."""
    public = key.verify_key.encode().hex()
    head = AuditHead(service=entry.service, number=entry.number, hash=entry.hash or "", at=at, key=public)
    return msgspec.structs.replace(head, signature=key.sign(_signed(head)).signature.hex())


def has_signature(head: AuditHead) -> bool:
    """Whether the key that a head names has signed it."""
    try:
        VerifyKey(bytes.fromhex(head.key)).verify(_signed(head), bytes.fromhex(head.signature))
    except (BadSignatureError, ValueError):
        return False
    return True


def _signed(head: AuditHead) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(head, signature=""), order="sorted")
