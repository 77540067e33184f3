"""Searches for bundles: what is learnt from the words of failures, what they cost, and how they go on."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from ratchet.bus.testing import eventually
from ratchet.core.contract.bundle import Bundle, BundleModel, Instructions, SamplingValues
from ratchet.core.contract.training import CallBudget, TokenPrices
from ratchet.core.errors import Unavailable
from ratchet.core.rules.call_budget import Amounts
from ratchet.trainer_worker.errors import NothingBetter, SearchFailed, error_code, is_final
from ratchet.trainer_worker.job import BUNDLE_FILE, DOCUMENTS, Event, Finished, Progressed, Saved, Stopped
from ratchet.trainer_worker.training.prompts.prompt_run import AT_ONCE, CANDIDATES, GREETING, LEDGER, Candidate
from tests.support.prompted_helpdesk import REFLECTOR, ROLE, RULES, USAGE, Helpdesk, served_helpdesk
from tests.support.searches import WorkerSide, search_spec, searched
from tests.support.snapshot_rows import trajectory_row


@pytest.fixture
async def helpdesk() -> AsyncIterator[Helpdesk]:
    async with served_helpdesk() as helpdesk:
        yield helpdesk


def best_of(end: Event) -> Bundle:
    assert isinstance(end, Finished), end
    return msgspec.json.decode((Path(end.directory) / BUNDLE_FILE).read_bytes(), type=Bundle)


def candidates(directory: Path) -> list[Candidate]:
    lines = (directory / DOCUMENTS / CANDIDATES).read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Candidate) for line in lines]


def charged(worker: WorkerSide) -> dict[str, float]:
    return [event for event in worker.events if isinstance(event, Progressed)][-1].metrics


@pytest.mark.slow
async def test_rules_are_read_from_the_words_of_failures(helpdesk: Helpdesk, tmp_path: Path) -> None:
    end = await searched(search_spec(tmp_path, helpdesk.url), tmp_path, WorkerSide(tmp_path))
    best = best_of(end)
    assert best.instructions is not None
    assert "{{instructions}}" in best.instructions.text
    assert all(rule in best.instructions.text for rule in RULES.values())
    first, *further = candidates(tmp_path)
    assert (first.parents, first.score < 0.8, further[-1].score) == ([], True, 1.0)
    assert all(one.parents[0] < one.candidate for one in further)
    assert {header["x-ratchet-arm"] for header in helpdesk.headers} == {"pinned"}


async def test_what_serves_is_asked_without_its_own_texts(helpdesk: Helpdesk, tmp_path: Path) -> None:
    rules = "\n".join(list(RULES.values())[:2])
    large = BundleModel(upstream="openai", name="large")
    start = Bundle(model=large, instructions=Instructions(text=rules), overrides=SamplingValues(temperature=0.5))
    spec = search_spec(tmp_path, helpdesk.url, start=start, composed_by="a" * 64)
    best = best_of(await searched(spec, tmp_path, WorkerSide(tmp_path)))
    assert (best.overrides, best.model) == (start.overrides, start.model)
    played = [n for n, asked in enumerate(helpdesk.asked) if asked["model"] != REFLECTOR]
    assert {helpdesk.headers[n]["x-ratchet-bundle"] for n in played} == {"a" * 64}
    assert {helpdesk.asked[n]["temperature"] for n in played} == {0.5}
    assert helpdesk.asked[played[0]]["messages"][0] == {"role": "system", "content": rules}


@pytest.mark.slow
async def test_reflections_read_recorded_conversations_and_words(helpdesk: Helpdesk, tmp_path: Path) -> None:
    spoken = [{"role": "user", "content": "refund #K47"}, {"role": "assistant", "content": "done"}]
    row = trajectory_row(reward=0.1, messages=spoken, words=["comment: the payment was suspicious"])
    await searched(search_spec(tmp_path, helpdesk.url, rows=[row]), tmp_path, WorkerSide(tmp_path))
    asked = [asked["messages"][0]["content"] for asked in helpdesk.asked if asked["model"] == REFLECTOR]
    assert asked[0] == GREETING
    prompt = asked[1]
    assert "user: refund #K47\nassistant: done" in prompt
    assert "reward 0.1; comment: the payment was suspicious" in prompt


@pytest.mark.parametrize(
    ("budget", "prices"),
    [
        (CallBudget(calls=90), None),
        (CallBudget(calls=10_000, tokens=30_000), None),
        (CallBudget(calls=10_000, usd=0.03), TokenPrices(prompt=1, completion=2)),
    ],
)
async def test_budget_is_never_exceeded(
    helpdesk: Helpdesk, tmp_path: Path, budget: CallBudget, prices: TokenPrices | None
) -> None:
    worker = WorkerSide(tmp_path)
    with suppress(NothingBetter):
        await searched(search_spec(tmp_path, helpdesk.url, budget=budget, prices=prices), tmp_path, worker)
    calls, figures = len(helpdesk.asked), charged(worker)
    assert 50 < calls <= figures["calls"] <= budget.calls
    assert (calls - AT_ONCE) * USAGE["total_tokens"] <= figures["spent_tokens"] <= (budget.tokens or 10**9)
    assert figures["spent_usd"] <= (budget.usd or 0)
    assert figures["spent_usd"] >= ((calls - AT_ONCE) * (200 + 2 * 20) / 1e6 if prices else 0)


@pytest.mark.slow
async def test_stopped_search_goes_on_without_asking_again(helpdesk: Helpdesk, tmp_path: Path) -> None:
    whole, first, again = (tmp_path / name for name in ("whole", "first", "again"))
    best = best_of(await searched(search_spec(whole, helpdesk.url), whole, WorkerSide(whole)))
    needed = len(helpdesk.asked)
    helpdesk.asked.clear()
    spec, worker, stop = search_spec(first, helpdesk.url), WorkerSide(first), threading.Event()
    worker.on_event = lambda event: stop.set() if isinstance(event, Progressed) and event.step > 100 else None
    assert isinstance(await searched(spec, first, worker, stop), Stopped)
    other = WorkerSide(again)
    resumed = search_spec(again, helpdesk.url, resume=worker.saved[-1].directory, attempt=2)
    assert best_of(await searched(resumed, again, other)) == best
    assert needed <= len(helpdesk.asked) <= charged(other)["calls"] <= needed + 4 * 6  # tickets that were under way


@pytest.mark.slow
async def test_kill_is_charged_with_all_that_it_might_have_used(helpdesk: Helpdesk, tmp_path: Path) -> None:
    first, again, budget = tmp_path / "first", tmp_path / "again", CallBudget(calls=200)
    worker, stop, kept = WorkerSide(first), threading.Event(), tmp_path / "kept"

    def keep(event: Event) -> None:
        if not isinstance(event, Saved):
            return
        if len(worker.saved) < 3:
            shutil.copytree(event.directory, kept, dirs_exist_ok=True)
            worker.stores = len(worker.saved) < 2
        else:  # no status names this one any more
            stop.set()

    worker.on_event = keep
    await searched(search_spec(first, helpdesk.url, budget=budget), first, worker, stop)
    lease = msgspec.json.decode((kept / LEDGER).read_bytes(), type=Amounts)
    assert len(helpdesk.asked) <= lease.calls <= len(helpdesk.asked) + 20
    other = WorkerSide(again)
    resumed = search_spec(again, helpdesk.url, budget=budget, resume=str(kept), attempt=2)
    with suppress(NothingBetter):
        await searched(resumed, again, other)
    assert len(helpdesk.asked) <= charged(other)["calls"] <= budget.calls


async def test_dollars_are_counted_at_the_prices_that_the_gateway_has(helpdesk: Helpdesk, tmp_path: Path) -> None:
    helpdesk.prices, worker = TokenPrices(prompt=1, completion=2), WorkerSide(tmp_path)
    with suppress(NothingBetter):
        budget = CallBudget(calls=10_000, usd=0.01)
        await searched(search_spec(tmp_path, helpdesk.url, budget=budget), tmp_path, worker)
    spent = charged(worker)["spent_usd"]
    assert (len(helpdesk.asked) - AT_ONCE) * (200 + 2 * 20) / 1e6 <= spent <= 0.01


@pytest.mark.parametrize(
    ("budget", "unknown", "reason"),
    [
        (CallBudget(calls=99, usd=1), (), "provider/reflector has none.* or give prompts.reflector_prices"),
        (CallBudget(calls=99), (REFLECTOR,), "prompts.reflector: nothing answers for reflector"),
        (CallBudget(calls=99), (ROLE,), "nothing answers for helpdesk"),
    ],
)
async def test_search_without_prices_or_models_asks_nothing(
    helpdesk: Helpdesk, tmp_path: Path, budget: CallBudget, unknown: tuple[str, ...], reason: str
) -> None:
    helpdesk.unknown = frozenset(unknown)
    with pytest.raises(SearchFailed, match=reason) as error:
        await searched(search_spec(tmp_path, helpdesk.url, budget=budget), tmp_path, WorkerSide(tmp_path))
    assert (error_code(error.value), helpdesk.asked) == ("DATA", [])


async def test_reflector_of_an_upstream_is_asked_for_the_role(helpdesk: Helpdesk, tmp_path: Path) -> None:
    spec = search_spec(tmp_path, helpdesk.url, reflector="openai/large", budget=CallBudget(calls=1))
    with suppress(NothingBetter):
        await searched(spec, tmp_path, WorkerSide(tmp_path))
    assert [(asked["model"], asked["messages"][0]["content"]) for asked in helpdesk.asked] == [
        (f"{ROLE}@openai/large", GREETING)
    ]


async def test_nothing_is_asked_before_its_lease_is_stored(helpdesk: Helpdesk, tmp_path: Path) -> None:
    worker, stop = WorkerSide(tmp_path), threading.Event()
    worker.stores = False
    running = asyncio.create_task(searched(search_spec(tmp_path, helpdesk.url), tmp_path, worker, stop))

    async def has_saved() -> bool:
        return bool(worker.saved)

    await eventually(has_saved)
    stop.set()
    assert isinstance(await running, Stopped)
    assert helpdesk.asked == []


async def test_search_that_finds_nothing_better_makes_no_policy(helpdesk: Helpdesk, tmp_path: Path) -> None:
    start = Bundle(instructions=Instructions(text="\n".join(RULES.values())))
    with pytest.raises(NothingBetter, match="did better on the validation tasks than what serves the role") as error:
        await searched(search_spec(tmp_path, helpdesk.url, start=start), tmp_path, WorkerSide(tmp_path))
    assert (error_code(error.value), is_final(error.value)) == ("CONVERGENCE", True)


@pytest.mark.slow
async def test_gateway_that_is_away_is_no_fault_of_a_candidate(helpdesk: Helpdesk, tmp_path: Path) -> None:
    helpdesk.silent = True
    with pytest.raises(Unavailable) as error:
        await searched(search_spec(tmp_path, helpdesk.url), tmp_path, WorkerSide(tmp_path))
    assert error_code(error.value) == "INFRA"


LOADED = """
import sys
import ratchet.trainer_worker.app
assert "gepa" not in sys.modules and "torch" not in sys.modules
import ratchet.trainer_worker.training.child
from ratchet.trainer_worker.training.prompts import gepa_search, prompt_run
assert "gepa" in sys.modules
print(sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "transformers", "litellm"}))
"""


def test_search_needs_no_torch_and_the_worker_no_gepa() -> None:
    ended = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
