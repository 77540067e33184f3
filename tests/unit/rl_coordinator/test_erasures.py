"""What an erasure is to policies, and its receipts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from ratchet.bus.kv import Bucket
from ratchet.bus.message import encode, named_id
from ratchet.bus.testing import FakeBroker, FakeBus
from ratchet.core.contract.erasure import ASKED, DONE, ERASURES, REMOVED, USER, Erasure, RewrittenSnapshot
from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.contract.snapshot import Row
from ratchet.core.datasets.domain.executions import execution_row
from ratchet.core.errors import BadRequest, BusUnavailable, DigestMismatch
from ratchet.core.rules.erasing import CLOCKS
from ratchet.core.service.contracts import load_contracts
from ratchet.core.stores.erasures import KnownErasures, ask_erasure
from ratchet.rl_coordinator.erasures import finisher
from ratchet.rl_coordinator.erasures.domain import is_theirs, tainted
from ratchet.rl_coordinator.erasures.finisher import made_from, untainted_base
from ratchet.rl_coordinator.erasures.receipts import KEY, Receipts
from ratchet.rl_coordinator.erasures.s3_objects import ErasedObjects
from ratchet.rl_coordinator.jobs.domain.jobs import begin_anew
from tests.support.executions import execution
from tests.support.snapshot_rows import label_row, pair_row, snapshot_manifest, trajectory_row
from tests.support.training import after, job

A, B, C, D, DATA = ("1" * 64, "2" * 64, "3" * 64, "4" * 64, "d" * 64)
AT = datetime(2026, 3, 2, tzinfo=UTC)


def manifest(**changes: Any) -> PolicyManifest:
    values: dict[str, Any] = {
        "kind": "adapter",
        "base_model": "org/model",
        "files": [],
        "role": "support",
        "created_at": AT,
    }
    return PolicyManifest(**{**values, **changes})


POLICIES = {
    A: manifest(dataset_digest=DATA),
    B: manifest(parent=f"s3://ratchet/policies/{A}.json"),
    C: manifest(kind="bundle", base_model=f"s3://ratchet/policies/{B}.json"),
    D: manifest(dataset_digest="e" * 64),
}
SNAPSHOT = RewrittenSnapshot(before=DATA, after=None, trajectories=8, erased=2)


def test_policies_are_tainted_through_what_they_continue() -> None:
    origins = {digest: made_from(one) for digest, one in POLICIES.items()}
    marked = tainted(POLICIES, origins, [SNAPSHOT], {A: "support@1"})
    assert [(one.digest, one.share, one.name) for one in marked] == [(A, 0.25, "support@1"), (B, 0, None), (C, 0, None)]


def test_policy_is_trained_anew_from_what_has_not_learned_from_it() -> None:
    origins = {digest: made_from(one) for digest, one in POLICIES.items()}
    marked = {one.digest: one for one in tainted(POLICIES, origins, [SNAPSHOT], {})}
    assert untainted_base(B, POLICIES, marked) == "org/model"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (trajectory_row(1), True),
        (trajectory_row(11), False),
        (label_row(1, label=True), True),
        (pair_row(1, chosen_trajectory_id="t2", rejected_trajectory_id="t1"), True),
        (pair_row(1), False),
        (replace(execution_row(execution(), None), workflow_id="t1"), True),
        (replace(execution_row(execution(), None), workflow_id="t10"), False),
    ],
)
def test_rows_are_theirs_by_whole_ids(row: Row, expected: bool) -> None:
    assert is_theirs(row, "support", {("support", "t1")}) is expected
    assert not is_theirs(row, "billing", {("support", "t1")})


@pytest.mark.parametrize("state", ["queued", "dispatched", "running"])
def test_job_begins_anew_without_data_and_checkpoint(state: str) -> None:
    before = job(state=state)
    anew = begin_anew(before, None, after(1))
    assert (anew.state, anew.snapshot, anew.artifacts) == ("queued", None, None)
    assert anew.request.training_config.dataset.snapshot is None
    assert (anew.attempt > before.attempt) is (state != "queued")


def erasure(phase: str = DONE) -> Erasure:
    return Erasure(
        erasure_id="0199f7b0-0000-7111-8222-333344445555",
        kind=USER,
        ref="mia",
        asked_by="test",
        asked_at=AT,
        phase=phase,
        removed={"turns": 3},
    )


def test_receipt_that_is_kept_names_its_erasure_again(tmp_path: Path) -> None:
    receipts = Receipts(tmp_path / "erasures")
    receipts.keep(erasure())
    assert receipts.kept() == [erasure()]
    assert (tmp_path / "erasures" / KEY).stat().st_mode & 0o077 == 0


def test_receipt_that_was_changed_is_not_ours(tmp_path: Path) -> None:
    receipts = Receipts(tmp_path)
    receipts.keep(erasure())
    (path,) = tmp_path.glob("*.json")
    path.write_text(path.read_text().replace("mia", "eva"))
    assert receipts.kept() == []


def test_receipt_of_another_key_is_read_in_words_alone(tmp_path: Path) -> None:
    ours, theirs = Receipts(tmp_path / "ours"), Receipts(tmp_path / "theirs")
    receipt = theirs.keep(erasure())
    assert ours.read(ours.keep(erasure())) == ours.read(receipt, unverified=True) == erasure()
    for false in (receipt, replace(receipt, signature="c2hvcnQ="), replace(receipt, signature="not base64")):
        with pytest.raises(BadRequest):
            ours.read(false)
    with pytest.raises(BadRequest, match="no receipt"):
        ours.read(replace(receipt, receipt="{}"), unverified=True)


@pytest.mark.parametrize(("later", "known"), [(CLOCKS, True), (CLOCKS + timedelta(seconds=1), False)])
async def test_erasure_that_waits_for_long_is_not_that_of_a_later_past(later: timedelta, known: bool) -> None:
    bus, waiting = FakeBus(FakeBroker(load_contracts())), erasure(phase=REMOVED)
    assert await ask_erasure(bus, waiting) == (waiting, True)
    again = replace(waiting, erasure_id=named_id("later"), phase=ASKED, asked_at=AT + later)
    assert await ask_erasure(bus, again) == ((waiting, False) if known else (again, True))


async def test_receipt_is_carried_out_again_once_the_broker_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts, answers = Receipts(tmp_path), iter([BusUnavailable("away"), None])
    receipts.keep(erasure())
    asked: list[Erasure] = []

    async def ask(_: object, again: Erasure) -> None:
        if error := next(answers):
            raise error
        asked.append(again)

    monkeypatch.setattr(finisher, "ask_erasure", ask)
    none: Any = None
    worker = finisher.Finisher(none, none, none, none, none, none, receipts, none, none)
    again = worker._ask_again  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(BusUnavailable):
        await again({})
    await again({})
    await again({})
    assert [one.phase for one in asked] == [ASKED]


async def test_erasures_are_read_anew_where_one_has_changed_alone() -> None:
    bus = FakeBus(FakeBroker(load_contracts()))
    known = KnownErasures(bus)
    assert await known.oldest_first() == []
    await ask_erasure(bus, erasure())
    first = await known.oldest_first()
    assert first == [erasure()]
    assert await known.oldest_first() is first
    await Bucket(bus, ERASURES, Erasure).put(erasure().erasure_id, erasure(phase=REMOVED))
    assert await known.oldest_first() == [erasure(phase=REMOVED)]


def test_damaged_rows_of_a_snapshot_are_removed_as_a_whole() -> None:
    manifest, gone = snapshot_manifest(trajectories=["mia", "eva"]), list[str]()
    uri = f"s3://test/snapshots/{DATA}.json"

    def get_file(*_: object) -> None:
        raise DigestMismatch("rows.parquet does not have its sha256")

    store: Any = SimpleNamespace(
        objects=lambda _: [SimpleNamespace(uri=uri)],
        aside=list,
        get=lambda _: encode(manifest),
        get_file=get_file,
        remove=gone.append,
    )
    rewritten = ErasedObjects(store).rewrite_snapshots({(manifest.role, "mia")})
    assert gone == [manifest.parquet.uri]
    assert rewritten == [RewrittenSnapshot(before=DATA, after=None, trajectories=2, erased=1)]
