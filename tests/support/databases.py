"""Databases of one warehouse, each for one test at a time: emptied rather than made again.

Making the tables takes the engine .3 s of the processor, and emptying them .01 s. A database goes to another test only
where its tables are those of the schema, as they are made or with the ages that a collector gives them by default, and
nothing works on it any more; else it is dropped.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from queue import Empty, SimpleQueue

import httpx

from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.schema import schema_digest, schema_statements

SHAPE = """
SELECT cityHash64(groupArray(made)) FROM (
    SELECT replaceAll(create_table_query, currentDatabase() || '.', '') AS made FROM system.tables
    WHERE database = currentDatabase() AND name != 'schemas' ORDER BY name
)"""
NOTED = "SELECT arrayStringConcat(groupArray(digest)) FROM schemas"
AT_WORK = "SELECT count() FROM system.processes WHERE current_database = {name:String}"
WRITTEN = "SELECT DISTINCT table FROM system.parts WHERE database = currentDatabase() AND table != 'schemas'"

_numbers = itertools.count()


class Databases:
    """The databases of the warehouse at `url`."""

    def __init__(self, url: str) -> None:
        self._engine = _Engine(url)
        self._empty = SimpleQueue[str]()
        self._emptying = ThreadPoolExecutor(1)

    def close(self) -> None:
        """Let what is being emptied end."""
        self._emptying.shutdown()
        self._engine.http.close()

    def take(self) -> str:
        """The name of a database that no other test uses: without rows, or not made yet."""
        try:
            return self._empty.get_nowait()
        except Empty:
            return f"t{os.getpid()}_{next(_numbers)}"

    def give_back(self, name: str) -> None:
        """Empty what a test has written, without waiting for it; drop what the next test cannot use.

        Dropped, because the engine looks after every table, all the time: those of tests that have ended would take
        half of a core.
        """
        self._emptying.submit(self._give_back, name)

    def _give_back(self, name: str) -> None:
        ask = partial(self._engine.ask, name)
        with suppress(httpx.HTTPError):
            try:
                usable = self._usable(name)
            except httpx.HTTPStatusError:  # it was never made, or only in part
                usable = False
            if not usable:
                self._engine.ask("default", f"DROP DATABASE IF EXISTS {name}")
                return
            for table in ask(WRITTEN).split():
                ask(f"TRUNCATE TABLE {table}")
            self._empty.put(name)

    def _usable(self, name: str) -> bool:
        ask = partial(self._engine.ask, name)
        own = ask(SHAPE) in self._engine.shapes and ask(NOTED) == schema_digest()
        return own and self._engine.ask("default", AT_WORK, param_name=name) == "0"


class _Engine:
    """Asks the engine, over one client: a client of its own for each statement takes .08 s of the processor, in which
    it reads authorities that it does not need."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.http = httpx.Client(timeout=60, trust_env=False, verify=False)

    def ask(self, database: str, statement: str, **parameters: str) -> str:
        """Raises `httpx.HTTPStatusError` where the engine refuses it."""
        answer = self.http.post(self._url, params={"database": database, **parameters}, content=statement)
        return answer.raise_for_status().text.strip()

    @cached_property
    def shapes(self) -> tuple[str, str]:
        """What tells the tables of the schema from others: as they are made, and as a collector leaves them."""
        name = f"shape{os.getpid()}"
        self.ask("default", f"CREATE DATABASE {name}")
        for statement in schema_statements().values():
            self.ask(name, statement)
        made = self.ask(name, SHAPE)
        asyncio.run(_give_ages(SharedSettings(clickhouse_url=self._url, clickhouse_database=name)))
        left = self.ask(name, SHAPE)
        self.ask("default", f"DROP DATABASE {name}")
        return made, left


async def _give_ages(shared: SharedSettings) -> None:
    """Give tables the ages of a collector without settings of its own."""
    from ratchet.core.stores.warehouse import Warehouse  # noqa: PLC0415 - only where there is a warehouse
    from ratchet.trajectory_collector.clickhouse_retention import Retention  # noqa: PLC0415 - likewise
    from ratchet.trajectory_collector.settings import Settings  # noqa: PLC0415 - likewise

    warehouse = await Warehouse.connect(shared)
    try:
        await Retention(warehouse, Settings(shared=shared)).tick()
    finally:
        await warehouse.close()
