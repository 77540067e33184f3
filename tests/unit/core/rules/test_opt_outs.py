"""Whom a message is about."""

from __future__ import annotations

from msgspec.structs import replace

from ratchet.core.contract.erasure import SESSION, TRAJECTORY, USER
from ratchet.core.rules.opt_outs import refs_of
from tests.support.executions import execution


def test_an_execution_is_about_its_workflow_user_and_session() -> None:
    done = replace(execution(), user_ref="u", session_id="s")
    assert set(refs_of(done)) == {(TRAJECTORY, done.workflow_id), (USER, "u"), (SESSION, "s")}
