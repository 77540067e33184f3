"""An installation as a release left it, made from the record of that release and not by the code of today."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nats.aio.client import Client as Nats

from ratchet.core.stores.schema import digest_of
from ratchet.core.stores.warehouse import Warehouse
from tests.support.pages import ROOT

Json = Any
"""Part of a JSON document."""
WAIT_S = 120.0
"""Longest wait for an answer of the broker: a busy machine is slow, not wrong."""
GENERATION = "of the release"
"""Of the streams that the rows came from: not those that are made here."""


@dataclass(frozen=True)
class Installation:
    """What a release stored: see `tools.released_state`."""

    version: str
    state_folder: Json
    """What `version.json` of a stack's folder says, beside the program's version."""
    streams: dict[str, Json]
    messages: list[Json]
    values: list[Json]
    tables: dict[str, str]
    rows: dict[str, list[Json]]
    examples: dict[str, dict[str, Json]]

    @classmethod
    def of(cls, version: str) -> Installation:
        """From the record of a release."""
        state = json.loads((ROOT / "deploy" / "released" / f"{version}.json").read_text())
        contracts = json.loads((ROOT / "contracts" / "released" / f"{version}.json").read_text())
        return cls(version=version, examples=contracts["examples"], **state)

    def without(self, table: str, column: str) -> Installation:
        """Of a made-up release whose table had no such column yet."""
        lines = self.tables[table].splitlines(keepends=True)
        tables = {**self.tables, table: "".join(line for line in lines if line.split()[:1] != [column])}
        assert tables != self.tables
        rows = [
            {**row, "columns": {name: value for name, value in row["columns"].items() if name != column}}
            for row in self.rows[table]
        ]
        return replace(self, tables=tables, rows={**self.rows, table: rows})

    @property
    def digest(self) -> str:
        """Of its schema."""
        return digest_of(self.tables)

    def body(self, example: str) -> bytes:
        """A document of the release as it lay in a stream, a bucket or a row."""
        schema, name = example.split("/")
        return json.dumps(self.examples[schema][name], ensure_ascii=False).encode()

    async def fill_broker(self, nc: Nats, *, topics: Collection[str], buckets: Collection[str]) -> None:
        """Make all streams and buckets, and send what was in some of them."""
        for name, config in self.streams.items():
            await _ask(nc, f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode())
        for sent in self.messages:
            if sent["headers"]["ce-type"] in topics:
                await _ask(nc, sent["subject"], self.body(sent["example"]), sent["headers"])
        for value in self.values:
            if value["subject"].split(".")[1] in buckets:
                await _ask(nc, value["subject"], self.body(value["example"]))

    async def fill_tables(self, warehouse: Warehouse) -> None:
        """Make all tables and views, and insert all rows, as if they were stored now: old ones go by their age."""
        await warehouse.command("CREATE TABLE schemas (digest String) ENGINE = ReplacingMergeTree ORDER BY digest")
        await warehouse.insert("schemas", [{"digest": self.digest}], token=None)
        for statement in self.tables.values():
            await warehouse.command(statement)
        for table, rows in self.rows.items():
            lines = "\n".join(json.dumps(self._row(table, row)) for row in rows)
            settings = "SETTINGS date_time_input_format = 'best_effort'"
            await warehouse.command(f"INSERT INTO {table} {settings} FORMAT JSONEachRow\n{lines}")

    def _row(self, table: str, row: Json) -> Json:
        body = {"generation": GENERATION, "body": self.body(row["example"]).decode()} if table != "calls" else {}
        return {**row["columns"], **body, "ingested_at": datetime.now(UTC).isoformat()}


def recorded_versions(root: Path = ROOT) -> list[str]:
    """The releases that have a record, the oldest first."""
    return sorted((file.stem for file in (root / "deploy" / "released").glob("*.json")), key=_numbers)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


async def _ask(nc: Nats, subject: str, body: bytes, headers: dict[str, str] | None = None) -> None:
    answer = json.loads((await nc.request(subject, body, timeout=WAIT_S, headers=headers)).data)
    assert "error" not in answer, (subject, answer)
