"""An address in a log does not give away the password in it."""

from __future__ import annotations

import pytest

from ratchet.bus.settings import without_user


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nats://ratchet:secret@nats:4222", "nats://nats:4222"),
        ("nats://token@nats:4222", "nats://nats:4222"),
        ("ratchet:secret@nats:4222", "nats:4222"),
        ("http://ratchet:s@cret@clickhouse:8123/db", "http://clickhouse:8123/db"),
        ("nats://a:secret@one:4222,nats://b:secret@two:4222", "nats://one:4222,nats://two:4222"),
        ("http://ratchet:s/cr?t#@clickhouse:8123/db", "http://clickhouse:8123/db"),
        ("nats://nats:4222", "nats://nats:4222"),
        ("https://host/path@2?q=a@b", "https://host/path@2?q=a@b"),
        ("127.0.0.1:4222", "127.0.0.1:4222"),
    ],
)
def test_user_and_password_are_left_out(url: str, expected: str) -> None:
    assert without_user(url) == expected
