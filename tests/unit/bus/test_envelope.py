"""The headers of a message, and its compression."""

from __future__ import annotations

import pytest
import zstandard

from ratchet.bus.envelope import COMPRESS_ABOVE, MAX_BODY, MAX_ID, enveloped, unseal
from ratchet.bus.message import Cause
from ratchet.bus.received import Received
from ratchet.core.errors import InvalidMessage
from tests.support.messages import AT, trajectory


def sealed(body: bytes = b"{}", cause: Received[object] | Cause | None = None) -> tuple[dict[str, str], bytes]:
    return enveloped(trajectory(), body, source="urn:ratchet:test", schema="urn:s", now=AT, cause=cause)  # type: ignore[arg-type]


def delivered() -> Received[object]:
    """A delivery that causes another event."""
    return Received(
        message=trajectory("cause"),
        subject="s",
        stream="S",
        sequence=1,
        delivered=1,
        event_id="the-cause",
        time=AT,
        correlation_id="the-root",
        headers={"traceparent": "00-abc-def-01"},
    )


def test_the_first_event_of_a_chain_correlates_with_itself() -> None:
    headers, _ = sealed()
    assert headers["ce-correlationid"] == headers["ce-id"] == trajectory().event_id
    assert headers["Nats-Msg-Id"] == trajectory().repetition_id
    assert "ce-causationid" not in headers
    assert headers["ce-type"] == "agent.rl.trajectory.v1"
    assert headers["ce-time"] == "2026-01-05T12:00:00Z"


def test_a_following_event_names_its_cause_and_keeps_correlation_and_trace() -> None:
    headers, _ = sealed(cause=delivered())
    assert headers["ce-causationid"] == "the-cause"
    assert headers["ce-correlationid"] == "the-root"
    assert headers["traceparent"] == "00-abc-def-01"


def test_following_event_repeats_no_long_header_of_its_cause() -> None:
    long = "x" * (MAX_ID + 1)
    headers, _ = sealed(cause=Cause(event_id="the-cause", correlation_id=long, traceparent=long))
    assert headers["ce-correlationid"] == headers["ce-causationid"] == "the-cause"
    assert "traceparent" not in headers


def test_a_kept_cause_is_the_same_as_its_delivery() -> None:
    kept = Cause(event_id="the-cause", correlation_id="the-root", traceparent="00-abc-def-01")
    assert delivered().as_cause() == kept
    assert sealed(cause=kept) == sealed(cause=delivered())


@pytest.mark.parametrize("size", [0, 1, COMPRESS_ABOVE, COMPRESS_ABOVE + 1, 3_000_000])
def test_a_body_comes_back_as_it_went(size: int) -> None:
    body = b"x" * size
    headers, wire = sealed(body)
    assert (headers.get("content-encoding") == "zstd") == (size > COMPRESS_ABOVE)
    assert unseal(headers, wire) == body


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("gzip", b"x"), ("zstd", b"not zstd"), ("zstd", zstandard.compress(b"0" * (MAX_BODY + 1)))],
)
def test_a_body_that_cannot_be_unpacked_is_invalid(encoding: str, body: bytes) -> None:
    with pytest.raises(InvalidMessage):
        unseal({"content-encoding": encoding}, body)
