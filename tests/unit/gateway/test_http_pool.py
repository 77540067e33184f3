"""What a pool refuses before it opens a connection."""

from __future__ import annotations

import pytest

from ratchet.core.errors import ConfigError
from ratchet.gateway.engines.http_pool import HttpPool


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:80",
        "ftp://h/",
        "http://",
        "http://h:99999",
        "http://h/?a=b",
        "http://h/#a",
        "http://h/a b",
        "http://user:secret@" + "h" * 70,
        "http://user:secret@[::1",
    ],
)
def test_a_url_that_is_no_server_is_a_wrong_setting_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        HttpPool(url, {}, connect_s=1)
    assert "secret" not in str(wrong.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("authorization", "secret\r\nx: y"), ("a b", "secret"), ("", "secret"), ("Host", "secret"), ("x", "secret\0")],
)
async def test_a_header_that_cannot_be_sent_is_refused_without_its_value(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        HttpPool("http://h", {name: value}, connect_s=1)
    assert "secret" not in str(wrong.value)
    pool = HttpPool("http://h", {}, connect_s=1)
    with pytest.raises(ValueError, match="a header that") as refused:
        await pool.post("/x", b"", [(name.encode(), value.encode())], first_byte_s=1)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("path", ["x", "/a b", "/a\r\nb: c", "/\u00e9"])
async def test_a_path_that_cannot_be_sent_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="a path"):
        await HttpPool("http://h", {}, connect_s=1).post(path, b"", first_byte_s=1)
