"""What the console's list of trajectories costs: `python -m tests.bench.bench_console [TRAJECTORIES [CALLS_EACH]]`.

Rows are generated inside ClickHouse (the embedded one), in a database with all migrations: trajectories of four roles
over the days of `PACE_S`, each with its calls, bodies of some 1.5 kB, rewards (some revised), thumbs, and `OPEN_ONES`
that have calls and no end. Ids are UUIDv7, as Ratchet's clients and gateway make them; with `--random-ids` they are
random, the worst case. Each query is asked `RUNS` times: its p50 and p95 are printed, and what ClickHouse read for the
first one. "Page 2,000" is a page of 50 after the 100,000th trajectory. `--keep DIRECTORY` keeps the data, and uses what
is there.
"""
# ruff: noqa: T201

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.trajectory_list import TrajectoryList, TrajectoryPage
from ratchet.core.stores.trajectory_search import FIRST, Place, TrajectoryFilter, at_millis
from ratchet.core.stores.warehouse import Row, Warehouse
from tests.support.running import prepared_warehouse
from tests.support.servers import running_clickhouse

TRAJECTORIES, CALLS_EACH = 1_000_000, 10
CHUNK = 250_000
PACE_S = 10
OPEN_ONES = 500
RUNS = 15
LONGEST_S = 20.0
"""Of the runs of one query."""
LIMIT = 50
STATEMENT_S = 900.0
NOW = datetime(2026, 11, 22, tzinfo=UTC)
WORDS = "order refund parcel invoice address late please thanks where when damaged cancel return voucher account help"
BLOCKS = "SETTINGS max_insert_threads = 1, max_block_size = 32768, min_insert_block_size_rows = 250000"

_AT = "fromUnixTimestamp64Milli(toInt64({end} - ({all} - n) * {pace}), 'UTC')"
_ROLE = "multiIf(n % 1000 = 0, 'rare', n % 10 < 7, 'support', n % 10 < 9, 'sales', 'coder')"
_UUID7 = (
    "concat(substring(hex7, 1, 8), '-', substring(hex7, 9, 4), '-7', substring(hash, 1, 3), '-a', substring(hash, 4, 3)"
    ", '-', substring(hash, 7, 12))"
)
_RANDOM = "concat(substring(hash, 1, 8), '-', substring(hash, 9, 4), '-4', substring(hash, 13, 3), '-a', hex7)"
_TEXT = (
    f"arrayStringConcat(arrayMap(x -> splitByChar(' ', '{WORDS}')[(cityHash64(n, x) % 16) + 1], range({{words}})), ' ')"
)
_ROWS = """
SELECT number AS n, {at} AS at, {role} AS role, lower(hex(MD5(toString(number)))) AS hash,
    lower(substring(hex(toUInt64(toUnixTimestamp64Milli(at))), 5)) AS hex7, {id} AS id
FROM numbers({first}, {count})
"""
_TRAJECTORIES = """
INSERT INTO trajectories (event_id, sequence, generation, trajectory_id, recorded_as, role, session_id, agent_id,
    task_id, model, source, turn_count, outcome, policy_version, policy_digest, arm, started_at, ended_at, body,
    ingested_at)
SELECT hash, n + 1, 'made/0', id, id, role, 's', concat('agent-', toString(n % 200)),
    concat('task-', toString(n % 5000)), 'm', if(n % 5 = 0, 'client', 'assembled'), 1,
    multiIf(n % 20 < 14, 'success', n % 20 < 16, 'partial', n % 20 < 19, 'failure', NULL),
    1 + intDiv(n, 50000), 'd', if(n % 10 = 3, 'canary', 'stable'), at - 60, at,
    concat('{{"turns":[{{"observation":{{"type":"user_message","content":"', {text},
        if(n % 50000 = 7, ' zeppelin', ''), '"}},"action":{{"type":"response","raw_response":"Yes."}}}}]}}'), at
FROM ({rows})
"""
_TURNS = """
INSERT INTO turns (event_id, sequence, generation, turn_id, trajectory_id, role, turn_index, attempt, policy_version,
    policy_digest, arm, weight, trainable, reason, prompt_tokens, completion_tokens, latency_ms, error, at, body,
    ingested_at)
SELECT lower(hex(MD5(concat(id, toString(call))))) AS event, n * {calls} + call, 'made/0', event, id, role, call, 1,
    1 + intDiv(n, 50000), 'd', if(n % 10 = 3, 'canary', 'stable'), 0.1, reason IS NULL,
    multiIf(n % 100000 = 9, 'redacted', (n + call) % 7 = 0, 'greedy', NULL) AS reason, 900, 60, 800.,
    if(n % 333 = 1, 'timeout', NULL), at - 60 + call,
    concat('{{"agent_id":"agent-', toString(n % 200), '","messages":[{{"role":"user","content":"', {text},
        '"}}],"response":{{"role":"assistant","content":"Yes."}}}}'), at
FROM ({rows}) ARRAY JOIN range({calls}) AS call
"""
_REWARDS = """
INSERT INTO rewards (event_id, sequence, generation, reward_id, trajectory_id, role, revision, function_name,
    function_version, total, confidence, at, body, ingested_at)
SELECT concat(hash, toString(revision)) AS event, n * 2 + revision, 'made/0', event, id, role, revision, 'standard',
    '1', (cityHash64(n, revision) % 100000) / 100000., 1, at + revision * 3600, '{{}}', at + revision * 3600
FROM ({rows}) ARRAY JOIN range(if(n % 20 = 0, 2, 1)) AS revision WHERE n % 20 != 5
"""
_THUMBS = """
INSERT INTO feedback (event_id, sequence, generation, feedback_id, trajectory_id, role, kind, rater, at, body,
    ingested_at)
SELECT hash, n, 'made/0', hash, id, role, 'thumbs', 'someone', at,
    if(n % 100 = 0, '{{"value":true}}', '{{"value":false}}'), at
FROM ({rows}) WHERE n % 50 = 0
"""


async def fill(warehouse: Warehouse, trajectories: int, calls: int, *, random_ids: bool) -> None:
    """Everything, the newest trajectory at `NOW`; the last `OPEN_ONES` have calls alone."""
    for first in range(0, trajectories + OPEN_ONES, CHUNK):
        count = min(CHUNK, trajectories + OPEN_ONES - first)
        at = _AT.format(end=round(NOW.timestamp() * 1000), all=trajectories + OPEN_ONES, pace=PACE_S * 1000)
        members = {"at": at, "role": _ROLE, "id": _RANDOM if random_ids else _UUID7, "first": first}
        every = _ROWS.format(**members, count=count)
        ended = _ROWS.format(**members, count=max(0, min(count, trajectories - first)))
        for table, rows, words in (
            (_TRAJECTORIES, ended, 200),
            (_TURNS, every, 40),
            (_REWARDS, ended, 0),
            (_THUMBS, ended, 0),
        ):
            statement = table.format(rows=rows, calls=calls, text=_TEXT.format(words=words))
            await warehouse.command(f"{statement} {BLOCKS}")


class Counting(Warehouse):
    """A warehouse that counts what its queries read."""

    rows_read = 0
    bytes_read = 0
    queries = 0

    async def rows(self, sql: str, parameters: Any = None) -> list[Row]:
        """Run the query; what it reads is added to the counts."""
        result = await self._client.query(sql, parameters=dict(parameters or {}))
        self.queries += 1
        self.rows_read += int(result.summary["read_rows"])
        self.bytes_read += int(result.summary["read_bytes"])
        return list(result.named_results())


async def measure(name: str, asked: TrajectoryFilter, warehouse: Counting, after: Place = FIRST) -> None:
    """Print one row of the table."""
    seconds: list[float] = []
    warehouse.queries = warehouse.rows_read = warehouse.bytes_read = 0
    page, read = TrajectoryPage([], None), ""
    while len(seconds) < RUNS and sum(seconds) < LONGEST_S:
        began = time.perf_counter()
        page = await TrajectoryList(warehouse, lambda: NOW).page(asked, LIMIT, after)
        seconds.append(time.perf_counter() - began)
        read = read or f"{warehouse.queries} | {warehouse.rows_read:,} | {warehouse.bytes_read / 1e6:.1f}"
    p95 = statistics.quantiles(seconds, n=20)[-1] if len(seconds) > 1 else seconds[0]
    reach = f", read back to {page.searched_since:%Y-%m-%d %H:%M}" if page.searched_since else ""
    shown = f"{len(page.trajectories)} rows{reach}"
    print(f"| {name} | {statistics.median(seconds) * 1e3:.0f} | {p95 * 1e3:.0f} | {read} | {shown} |", flush=True)


async def main(trajectories: int, calls: int, directory: Path, *, random_ids: bool) -> None:
    """Print one table."""
    with running_clickhouse(directory) as server:
        settings = SharedSettings(
            clickhouse_url=server.url, clickhouse_database="console", clickhouse_timeout_s=STATEMENT_S
        )
        async with prepared_warehouse(settings) as warehouse:
            (stored,) = await warehouse.rows("SELECT count() AS rows FROM trajectories")
            if not stored["rows"]:
                began = time.monotonic()
                await fill(warehouse, trajectories, calls, random_ids=random_ids)
                print(f"filled in {time.monotonic() - began:.0f} s", file=sys.stderr)
            print("| page | p50 ms | p95 ms | queries | rows read | MB read | |\n|---|---|---|---|---|---|---|")
            counting = await Counting.connect(settings)
            assert isinstance(counting, Counting)
            for name, asked in FILTERS.items():
                await measure(name, asked, counting)
            deep = at_millis(round(NOW.timestamp() * 1000) - 100_000 * PACE_S * 1000)
            middle = Place(round(deep.timestamp() * 1000), "", "")
            await measure("page 2,000", TrajectoryFilter(), counting, middle)
            failures = TrajectoryFilter(role="support", outcome="failure")
            await measure("page 2,000, failures of a role", failures, counting, middle)
            await counting.close()


FILTERS = {
    "the newest": TrajectoryFilter(),
    "ended": TrajectoryFilter(state="ended"),
    "open": TrajectoryFilter(state="open"),
    "a role": TrajectoryFilter(role="support"),
    "a rare role": TrajectoryFilter(role="rare"),
    "a version, of the newest": TrajectoryFilter(version=20),
    "a version, long ago": TrajectoryFilter(version=3),
    "an arm": TrajectoryFilter(arm="canary"),
    "an outcome": TrajectoryFilter(outcome="failure"),
    "an agent": TrajectoryFilter(agent="agent-17"),
    "an agent that there is not": TrajectoryFilter(agent="agent-x"),
    "a source": TrajectoryFilter(source="client"),
    "rewards below .1": TrajectoryFilter(reward_max=0.1),
    "rewards above .9999": TrajectoryFilter(reward_min=0.9999),
    "a common reason": TrajectoryFilter(reason="greedy"),
    "a rare reason": TrajectoryFilter(reason="redacted"),
    "a reason that there is not": TrajectoryFilter(reason="too_large"),
    "a common word": TrajectoryFilter(text="voucher"),
    "a rare word": TrajectoryFilter(text="zeppelin"),
    "a word that there is not": TrajectoryFilter(text="quagga"),
    "a month ago": TrajectoryFilter(until=NOW - timedelta(days=30)),
}


def run(arguments: Sequence[str]) -> None:
    """The command."""
    numbers = [int(argument) for argument in arguments if argument.isdigit()]
    sizes = (numbers + [TRAJECTORIES, CALLS_EACH][len(numbers) :])[:2]
    with ExitStack() as stack:
        kept = arguments[arguments.index("--keep") + 1] if "--keep" in arguments else None
        directory = Path(kept or stack.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(parents=True, exist_ok=True)
        asyncio.run(main(sizes[0], sizes[1], directory, random_ids="--random-ids" in arguments))


if __name__ == "__main__":
    run(sys.argv[1:])
