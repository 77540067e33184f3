"""Who is known to have opted out: what this process has sent, and what the bucket says afterwards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ratchet.core.contract import OptOut, named_id
from ratchet.core.contract.erasure import USER
from ratchet.core.contract.opt_out import OPT_OUTS
from ratchet.core.rules.opt_outs import key_of
from ratchet.core.service.opt_outs import KnownOptOuts
from tests.support.messages import AT

OUT, IN = (
    OptOut(opt_out_id=named_id("opt-out"), kind=USER, ref="mia", at=AT, role="support", is_over=is_over)
    for is_over in (False, True)
)


def bucket_has(known: KnownOptOuts, *, is_out: bool) -> None:
    """The bucket says so of the user."""
    headers = None if is_out else {"KV-Operation": "DEL"}
    message: Any = SimpleNamespace(subject=f"$KV.{OPT_OUTS}.{key_of(OUT)}", headers=headers, data=b"{}")
    known._take([message], known._stored)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("before", [[], [IN], [OUT, IN]])
def test_who_opts_out_elsewhere_after_opting_in_here_is_heeded(before: list[OptOut]) -> None:
    known = KnownOptOuts(cast("Any", None))
    for sent in before:
        known.note(sent)
    if OUT in before:  # the bucket follows
        bucket_has(known, is_out=True)
        assert not known.covers("support", [(USER, "mia")])
        bucket_has(known, is_out=False)
    bucket_has(known, is_out=True)
    assert known.covers("support", [(USER, "mia")])
    known.note(IN)
    assert not known.covers("support", [(USER, "mia")])
