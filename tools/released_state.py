"""What an installation of a release has stored, as a record: what the upgrade test starts from, whatever the code of
its day makes. `tools.record_release` writes it beside the contracts.

Streams and buckets as the broker was asked for them; tables as the statements that made them; and what lies in them:
a message for each event of the examples with its headers, a value for each kind of key, and a row for each message that
the collector stores. Bodies are those of the examples in the record of the contracts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ratchet.bus.contracts import Contracts
from ratchet.bus.envelope import Sealer
from ratchet.bus.message import Message
from ratchet.bus.received import Received
from ratchet.bus.stream_configs import stream_configs
from ratchet.core.contract import MESSAGES
from ratchet.core.contract.directory import stored_kinds
from ratchet.core.rules.redaction import rules_digest
from ratchet.core.service.contracts import load_contracts
from ratchet.core.stores.schema import schema_digest, schema_statements
from ratchet.local.local_stack.state import FORMAT
from ratchet.trajectory_collector.rows import TABLES, call_of, row_of

Json = Any
"""Part of a JSON document."""
Examples = Mapping[str, Mapping[str, Json]]
"""By schema, then by name."""
AT = datetime(2026, 3, 2, 12, tzinfo=UTC)
"""When the record's messages were sent and stored."""
LATER = ("body", "generation", "ingested_at")
"""Columns that filling the tables gives a value: the example, and when that is."""


def recorded_state(root: Path, examples: Examples) -> dict[str, Json]:
    """The state of an installation with the contracts in `root`, and these examples."""
    contracts = load_contracts()
    sent = list(_messages(contracts, examples))
    rows: dict[str, list[Json]] = {}
    for sequence, (message, example) in enumerate(sent, 1):
        for table, row in _rows(message, sequence):
            kept = {name: value for name, value in row.items() if name not in LATER}
            rows.setdefault(table, []).append({"example": example, "columns": msgspec.to_builtins(kept)})
    sealer = Sealer(contracts, "client", lambda: AT, rules_digest())
    return {
        "state_folder": {"format": FORMAT, "schema": schema_digest()},
        "streams": {config.name: config.as_dict() for config in stream_configs(contracts, 1)},
        "messages": [
            {"subject": message.subject, "headers": sealer.seal(message).headers, "example": example}
            for message, example in sent
        ],
        "values": list(_values(root, examples)),
        "tables": schema_statements(),
        "rows": rows,
    }


def _messages(contracts: Contracts, examples: Examples) -> Iterator[tuple[Message, str]]:
    """The first example of each event: some show one event in several forms."""
    known: set[tuple[str, str]] = set()
    for topic in contracts.topics.values():
        # The fullest first.
        named = sorted(examples.get(topic.schema, {}).items(), key=lambda item: -len(json.dumps(item[1])))
        for name, document in named:
            message = msgspec.convert(document, MESSAGES[topic.name])
            if (topic.name, message.event_id) not in known:
                known.add((topic.name, message.event_id))
                yield message, f"{topic.schema}/{name}"


def _values(root: Path, examples: Examples) -> Iterator[Json]:
    """A value for each kind of key of a bucket; a part of a key is that member of the value, or a word."""
    for kind in stored_kinds(root):
        match = re.fullmatch(r"bucket (\w+), key (\S+)", kind.where)
        if match is not None:
            value = examples[kind.schema]["full"]
            key = re.sub(r"<(\w+)>", lambda part, value=value: str(value.get(part[1], "helpdesk")), match[2])
            yield {"subject": f"$KV.{match[1]}.{key}", "example": f"{kind.schema}/full"}


def _rows(message: Message, sequence: int) -> Iterator[tuple[str, Mapping[str, Json]]]:
    """The rows that the collector makes of a message, by table."""
    if (table := TABLES.get(message.TOPIC)) is None:
        return
    received = Received(
        message=message,
        subject=message.subject,
        stream="",
        sequence=sequence,
        delivered=1,
        event_id=message.event_id,
        time=AT,
        correlation_id=message.event_id,
    )
    row = row_of(table, received, "", AT)
    yield table.name, row
    if table.name == "turns":
        yield "calls", call_of(row)
