"""The ledger's balance: whether every message is accounted for, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ratchet.core.contract.http.console import LedgerOut

if TYPE_CHECKING:
    from ratchet.core.stores.warehouse import Warehouse


async def ledger_balance(warehouse: Warehouse) -> list[LedgerOut]:
    """One for each stream and consumer, as of the last audit. Raises `WarehouseUnavailable`."""
    rows = await warehouse.rows("SELECT * FROM ledger_balance ORDER BY stream, consumer")
    return msgspec.convert(rows, list[LedgerOut])
