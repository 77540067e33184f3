"""A replica that is killed takes nothing with it: the other one, on the same cache, finds and serves every policy."""

from __future__ import annotations

import fcntl
import os

from tests.support.vllm_process import RunningVllm


def is_held(vllm: RunningVllm, digest: str) -> bool:
    """Whether a replica uses the adapter's directory."""
    lock = os.open(vllm.cache / ".locks" / digest, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def test_the_other_replica_serves_on_and_what_the_killed_one_held_is_free(replicas: list[RunningVllm]) -> None:
    first, second = replicas
    only_first, both, later = (first.publish(algorithm=f"kill-{n}") for n in range(3))
    for vllm, policy in ((first, only_first), (first, both), (second, both)):
        assert vllm.ask(vllm.name_of(policy)).status_code == 200
    assert is_held(first, only_first.digest)
    first.server.kill()
    assert [is_held(second, one.digest) for one in (only_first, both)] == [False, True]
    for policy in (both, later, only_first):
        assert second.ask(second.name_of(policy)).status_code == 200
