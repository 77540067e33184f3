"""`ratchet preferences` and `ratchet dataset` as an operator types them, against real servers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.core.preferences.clickhouse_stored import Selection, StoredPreferences
from ratchet.core.service.settings import SharedSettings
from tests.support.command_lines import Shell, shell
from tests.support.coordinator import ROLE, Workshop, coordinating, stored
from tests.support.preferences import tries
from tests.support.running import connected, prepared_objects, prepared_warehouse
from tests.support.servers import variables


@pytest.fixture
async def bus(shared_settings: SharedSettings) -> AsyncIterator[Bus]:
    prepared_objects(shared_settings)
    async with prepared_warehouse(shared_settings), connected(shared_settings) as bus:
        yield bus


@pytest.fixture
def ratchet(shared_settings: SharedSettings, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    with shell(variables(shared_settings), capsys) as typed:
        yield typed


async def there(shared: SharedSettings, number: int) -> None:
    """Wait until `number` preferences are stored."""
    async with prepared_warehouse(shared) as warehouse:

        async def all_there() -> bool:
            counts = await StoredPreferences(warehouse).counts(Selection())
            return sum(count.number for count in counts) >= number

        await eventually(all_there)


async def test_pairs_are_derived_once(shared_settings: SharedSettings, bus: Bus, ratchet: Shell) -> None:
    async with stored(shared_settings, bus, tries()):
        dry = await ratchet.json("preferences", "derive", "--dry-run")
        assert (dry["dry_run"], dry["report"]["pairs"], dry["report"]["done"]["published"]) == (True, 7, 7)
        assert (await ratchet.json("preferences", "list"))["counts"] == []
        report = await ratchet("preferences", "derive", "--role", ROLE)
        assert "verified-outcome" in report
        assert "7 pairs: 7 published, 0 already present" in report
        await there(shared_settings, 7)
        assert "7 pairs: 0 published, 7 already present" in await ratchet("preferences", "derive")
        assert "no such role: no_such_role" in await ratchet("preferences", "derive", "--role", "no_such_role", code=1)


async def test_judgements_are_added_listed_and_exported(
    shared_settings: SharedSettings, bus: Bus, ratchet: Shell, tmp_path: Path
) -> None:
    async with stored(shared_settings, bus, tries()):
        await ratchet("preferences", "derive")
        choice = ("preferences", "add", "--role", ROLE, "--prompt", "Where?", "--a", "Here.", "--b", "There.")
        assert "tie" in await ratchet(*choice, "--choice", "tie", code=2)
        await ratchet(*choice, "--choice", "b", "--rater", "reviewer-7", "--confidence", "0.7")
        pair = {"prompt": "Who?", "chosen": "Write to someone@example.org.", "rejected": "Nobody."}
        words = [sys.executable, "-m", "ratchet.cli", "preferences", "add", "-", "--role", ROLE]
        await asyncio.to_thread(subprocess.run, words, input=json.dumps(pair), text=True, check=True)
        file = tmp_path / "mine.jsonl"
        file.write_text(
            json.dumps({**pair, "prompt": "When?"}) + "\nnot json\n" + json.dumps({"prompt": "Why?"}) + "\n"
        )
        added = await ratchet.json("preferences", "add", "--file", str(file), "--role", ROLE, code=3)
        assert [bad["line"] for bad in added["report"]["bad"]] == [2, 3]
        assert added["report"]["done"]["published"] == 1
        file.write_text("no\npreference\n")
        assert "has no preference in its 2 lines; line 1: not JSON" in await ratchet(
            "preferences", "add", "--file", str(file), code=1
        )
        await there(shared_settings, 10)
        await check_listed(ratchet)
        await check_exported(ratchet, tmp_path / "all.jsonl")
        await ratchet(*choice, "--choice", "a", "--rater", "reviewer-8")
        await there(shared_settings, 11)
        raters = await ratchet.json("preferences", "raters", "--role", ROLE)
        assert (raters["questions"], raters["alpha"]) == (1, 0.0)
        assert {rater["rater"]: rater["is_outlier"] for rater in raters["raters"]} == {
            "human/reviewer-7": False,
            "human/reviewer-8": False,
        }
        assert "alpha: 0.00" in await ratchet("preferences", "raters", "--role", ROLE)


async def check_listed(ratchet: Shell) -> None:
    """The newest judgements come first, without the address in an answer, and are counted by rater."""
    listed = await ratchet.json("preferences", "list", "--source", "human", "--limit", "2")
    assert [preference["prompt"] for preference in listed["preferences"]] == ["When?", "Who?"]
    assert listed["preferences"][1]["chosen"] == "Write to [REDACTED:email]."
    assert {(count["rater"], count["number"]) for count in listed["counts"]} == {("reviewer-7", 1), (None, 2)}
    assert "reviewer-7" in await ratchet("preferences", "list")


async def check_exported(ratchet: Shell, exported: Path) -> None:
    """A second export adds nothing to the file, and its pairs are not added again."""
    assert (await ratchet.json("preferences", "export", str(exported)))["added"] == 10
    again = await ratchet.json("preferences", "export", str(exported))
    assert (again["added"], again["present"]) == (0, 10)
    assert len((await asyncio.to_thread(exported.read_text)).splitlines()) == 10
    back = await ratchet.json("preferences", "add", "--file", str(exported))
    assert (back["report"]["done"]["published"], back["report"]["done"]["present"]) == (0, 10)


@pytest.fixture
async def workshop(
    shared_settings: SharedSettings, bus: Bus, ratchet: Shell, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Workshop]:
    """A coordinator, and seven stored pairs."""
    async with (
        stored(shared_settings, bus, tries()),
        coordinating(shared_settings, bus, minimum_rows=3) as workshop,
    ):
        monkeypatch.setenv("RATCHET_COORDINATOR_URL", str(workshop.api.base_url))
        await ratchet("preferences", "derive")
        await there(shared_settings, 7)
        yield workshop


@pytest.mark.usefixtures("workshop")
async def test_dataset_explain_shows_what_a_job_would_learn_from(ratchet: Shell) -> None:
    asked = ("dataset", "explain", "--role", ROLE, "--algorithm")
    assert (await ratchet.json(*asked, "dpo"))["preview"]["refused"] is None
    assert "a job would be refused: role support has no stored" in await ratchet(*asked, "kto")
    none = "role support has no stored trajectory with a reward and thumbs within the last 90 days"
    assert (await ratchet.json(*asked, "kto"))["preview"]["refused"] == none
    assert "does nothing for dpo" in await ratchet(*asked, "dpo", "--min-reward", "0.5", code=1)
    sft = (await ratchet.json(*asked, "sft", "--min-reward", "0.5"))["preview"]
    assert (sft["rows"], sft["left_out"], sft["refused"]) == (7, {"below_min_reward": 6}, None)


@pytest.mark.usefixtures("workshop")
async def test_a_banned_rater_teaches_nothing_until_it_is_released(ratchet: Shell) -> None:
    build = ("dataset", "build", "--role", ROLE, "--algorithm", "dpo")
    assert "no such role" in await ratchet("preferences", "ban", "verified-outcome", "--role", "other", code=1)
    await ratchet("preferences", "ban", "verified-outcome", "--role", ROLE)
    assert "excluded_rater" in await ratchet(*build, code=1)
    assert "verified-outcome: banned by" in await ratchet("preferences", "raters", "--role", ROLE)
    await ratchet("preferences", "release", "verified-outcome", "--role", ROLE)
    assert (await ratchet.json(*build))["manifest"]["rows"] == 7
    decided = (await ratchet.json("preferences", "raters", "--role", ROLE))["decisions"]
    assert decided["verified-outcome"]["decision"] == "released"


@pytest.mark.slow
async def test_a_snapshot_is_built_and_explained_without_a_job(
    workshop: Workshop, ratchet: Shell, tmp_path: Path
) -> None:
    build = ("dataset", "build", "--role", ROLE, "--algorithm", "dpo")
    assert (await ratchet.json(*build, "--dry-run"))["body"]["algorithm"] == "dpo"
    assert "min_human_share 1 leaves none" in await ratchet(*build, "--min-human-share", "1", code=1)
    copied = tmp_path / "copied"
    built = await ratchet.json(*build, "-o", str(copied))
    assert pq.read_table(copied / "rows.parquet").num_rows == built["manifest"]["rows"] == 7
    assert hashlib.sha256((copied / "manifest.json").read_bytes()).hexdigest() == built["digest"]
    from tests.support.tiny_models import write_tokenizer  # noqa: PLC0415 - torch

    write_tokenizer(tmp_path, ["Where is it? It is here."])
    explain = ("dataset", "explain", built["uri"], "--model", str(tmp_path))
    explained = await ratchet.json(*explain)
    assert (explained["chats"]["answers"], explained["findings"]) == (14, [])
    assert "among the newest, at most 1000 pairs" in explained["every_row"]
    assert "every row: this line of policies has not learned from it" in await ratchet(*explain)
    cut = ("--role", ROLE, "--algorithm", "dpo", "--model", str(tmp_path), "--row-tokens", "12")
    short = await ratchet.json("dataset", "explain", *cut)
    assert any("lose their end" in finding for finding in short["findings"])
    taken = await ratchet.json(
        "train", ROLE, "--algorithm", "dpo", "--base-model", "org/model", "--snapshot", built["uri"], "--dry-run"
    )
    assert taken["body"]["dataset"]["snapshot"]["digest"] == built["digest"]
    assert (await workshop.api.get("/v1/jobs")).json()["jobs"] == []


async def test_the_snapshot_of_a_job_is_shown_and_exported(workshop: Workshop, ratchet: Shell, tmp_path: Path) -> None:
    job = await workshop.ask(algorithm="dpo")
    await workshop.dispatched(job["training_job_id"])
    shown = await ratchet.json("dataset", "show", job["training_job_id"])
    assert (shown["manifest"]["format"], shown["manifest"]["raters"]) == ("pairs", {"verified-outcome": 7})
    assert "verified-outcome 7" in await ratchet("dataset", "show", shown["uri"])
    lines, parquet = tmp_path / "rows.jsonl", tmp_path / "rows.parquet"
    assert (await ratchet.json("dataset", "export", shown["uri"], "-o", str(lines)))["rows"] == 7
    await ratchet("dataset", "export", job["training_job_id"], "-o", str(parquet))
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["preference_id"] for row in rows] == shown["manifest"]["preferences"]
    assert rows[0]["rejected"] == [{"role": "assistant", "content": "I do not know."}]
    assert pq.read_table(parquet).num_rows == 7
    assert "must end in" in await ratchet("dataset", "export", "nothing", "-o", "rows.csv", code=2)
    wrong = shown["uri"].replace(shown["digest"], "0" * 64)
    assert "no such object" in await ratchet("dataset", "show", wrong, code=1)
    assert "no such job" in await ratchet("dataset", "show", "nothing", code=1)
