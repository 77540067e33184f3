"""Fixtures for all tests: real servers for integration tests, and one thread for torch. And their tiers and times."""

import gc
import os
import re
import time
from collections.abc import Generator, Iterator
from pathlib import Path

# Two cores are shared; torch reads this when it is first imported, so it stands before every other import.
os.environ["OMP_NUM_THREADS"] = "1"
# Every HTTP client reads the authorities that it trusts, a few hundred, for tens of milliseconds: a test's peer is on
# this machine and needs none. This folder holds none.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.containers import require_engine
from tests.support.servers import broker_accounts, clickhouse, databases, in_containers, nats, s3, shared_settings
from tests.support.temporary import place_in_memory

__all__ = ["broker_accounts", "clickhouse", "databases", "nats", "s3", "shared_settings"]

# A busy machine is slow, not wrong: no example has a deadline, and slow generation is no failure. Examples are the same
# in every run, so that chance decides no result; `--hypothesis-profile=explore` looks for new ones.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("full", settings.get_profile("explore"), derandomize=True, database=None, max_examples=100)
settings.register_profile("fast", settings.get_profile("full"), max_examples=25)
settings.load_profile("fast")

WHOLLY_SLOW = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.slow\b", re.MULTILINE)
TIMES = "--times"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the times of tests go."""
    parser.addoption(TIMES, metavar="FILE", help="add each test's seconds, processor seconds and name to a file")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """A run that asks for containers where there is no engine ends at once, with one line."""
    place_in_memory(config)
    if in_containers(os.environ):
        require_engine()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files without a test of the asked tier are not imported: many slow ones take torch, or an agent framework."""
    tier: str = config.option.markexpr
    if not tier or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    others = {
        "not slow": WHOLLY_SLOW.search(text) is not None,
        "slow": "mark.slow" not in text,
        "(slow or hypothesis) and not nightly": "mark.slow" not in text and "hypothesis" not in text,
        "nightly": "mark.nightly" not in text,
    }
    return others.get(tier) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that is imported is garbage: a search for some in a million objects takes a sixth of the tests' time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note how long a test took, and how much of the processor: its own, and its ended children's."""
    began, spent = time.monotonic(), sum(os.times()[:4])
    result = yield
    if file := item.config.getoption(TIMES):
        with Path(file).open("a") as times:
            times.write(f"{time.monotonic() - began:.2f}\t{sum(os.times()[:4]) - spent:.2f}\t{item.nodeid}\n")
    return result


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command that runs within the test's process silences the logs of its process for good."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
