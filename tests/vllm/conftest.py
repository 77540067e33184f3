"""vLLM is started twice for all files: its two kinds of log-probabilities are its two replicas."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers import Server, s3_settings
from tests.support.vllm_process import PROCESSED, RAW, START_S, VLLM, RunningVllm, running_replicas

LAST = "test_replica_killed.py"
"""The file after which fewer replicas run."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip all where vLLM is not installed; the file `LAST` comes last."""
    items.sort(key=lambda item: item.path.name == LAST)
    for item in items:
        item.add_marker(pytest.mark.skipif(not VLLM.exists(), reason="vLLM is not installed: make vllm"))
        item.add_marker(pytest.mark.timeout(START_S))  # the first one starts vLLM


@pytest.fixture(scope="session")
def replicas(s3: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningVllm]]:
    """Two replicas on one base, one store and one cache: the first one answers with processed log-probabilities."""
    with running_replicas(tmp_path_factory.mktemp("vllm"), s3_settings(s3, "vllm")) as running:
        yield running


@pytest.fixture(params=[PROCESSED, RAW])
def vllm(request: pytest.FixtureRequest, replicas: list[RunningVllm]) -> RunningVllm:
    """Each of the replicas."""
    return next(one for one in replicas if one.logprobs_mode == request.param)
