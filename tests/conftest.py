"""Fixtures for all tests: real servers for integration tests, and one thread for torch."""

import os
from collections.abc import Iterator
from pathlib import Path

# Two cores are shared; torch reads this when it is first imported, so it stands before every other import.
os.environ["OMP_NUM_THREADS"] = "1"
# Every HTTP client reads the authorities that it trusts, a few hundred, for tens of milliseconds: a test's peer is on
# this machine and needs none. This folder holds none.
if "SSL_CERT_FILE" not in os.environ:
    os.environ.setdefault("SSL_CERT_DIR", str(Path(__file__).parent))

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.containers import require_engine
from tests.support.servers import broker_accounts, clickhouse, in_containers, nats, s3, shared_settings
from tests.support.temporary import place_in_memory

__all__ = ["broker_accounts", "clickhouse", "nats", "s3", "shared_settings"]

# A busy machine is slow, not wrong: no example has a deadline, and slow generation is no failure. Examples are the same
# in every run, so that chance decides no result; `--hypothesis-profile=explore` looks for new ones.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("explore"), derandomize=True, database=None)
settings.load_profile("same")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """A run that asks for containers where there is no engine ends at once, with one line."""
    place_in_memory(config)
    if in_containers(os.environ):
        require_engine()


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command that runs within the test's process silences the logs of its process for good."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
