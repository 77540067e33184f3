"""Who may ask the embedded ClickHouse, and which words it refuses."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest

from ratchet.core.errors import ConfigError
from ratchet.local.local_stack.clickhouse_access import reads_files, refusal
from ratchet.local.local_stack.clickhouse_statement import ProtocolError, statement
from ratchet.local.local_stack.state import keep_secrets, read_secrets

PORT, PASSWORD = 8123, "secret"
HOST = {"host": f"127.0.0.1:{PORT}"}


def basic(user: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.parametrize(
    "headers",
    [
        HOST | basic("ratchet", PASSWORD),
        {"host": f"localhost:{PORT}"} | basic("ratchet", PASSWORD),
        HOST | {"x-clickhouse-user": "ratchet", "x-clickhouse-key": PASSWORD},
    ],
)
def test_the_password_opens(headers: dict[str, str]) -> None:
    assert refusal(headers, PORT, PASSWORD) is None


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        (HOST, "password"),
        (HOST | basic("ratchet", "wrong"), "password"),
        (HOST | basic("default", PASSWORD), "password"),
        (HOST | basic("ratchet", ""), "password"),
        (HOST | {"authorization": "Basic ???"}, "password"),
        (HOST | {"authorization": "Basic /w=="}, "password"),
        (HOST | {"authorization": f"Bearer {PASSWORD}"}, "password"),
        (HOST | {"x-clickhouse-key": PASSWORD}, "password"),
        (HOST | basic("ratchet", "żółć"), "password"),
        (basic("ratchet", PASSWORD), "address"),
        ({"host": "evil.example"} | basic("ratchet", PASSWORD), "address"),
        ({"host": f"evil.example:{PORT}"} | basic("ratchet", PASSWORD), "address"),
        ({"host": "127.0.0.1:1"} | basic("ratchet", PASSWORD), "address"),
        (HOST | {"origin": "https://evil.example"} | basic("ratchet", PASSWORD), "browser"),
        (HOST | {"origin": "null"} | basic("ratchet", PASSWORD), "browser"),
    ],
)
def test_everything_else_is_refused(headers: dict[str, str], reason: str) -> None:
    assert reason in str(refusal(headers, PORT, PASSWORD))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT file('/etc/passwd')",
        "SELECT FILE /* a */ ('/etc/passwd')",
        "SELECT `file`('/etc/passwd')",
        'SELECT "file"(x)',
        "SELECT `\\x66ile`('/etc/passwd')",
        "SELECT * APPLY(file) FROM t",
        "SELECT $$'$$, file('/etc/passwd'), $$'$$",
        "SELECT 'a' -- '\n, file('/etc/passwd') -- '",
        "SELECT /* ' */ file('/etc/passwd') /* ' */",
        "SELECT # '\n file('/etc/passwd') # '",
        "SELECT \u2018'\u2019, file('/etc/passwd'), \u2018'\u2019",
        "SELECT '\\'', file('/etc/passwd'), ''",
        "SELECT 1 INTO OUTFILE '/tmp/x'",
        "INSERT INTO t FROM\nINFILE '/etc/passwd' FORMAT CSV",
        "INSERT INTO t VALUES (file('/etc/passwd'))",
        "INSERT INTO t FORMAT Values (file('/etc/passwd'))",
    ],
)
def test_words_that_reach_files_are_refused(sql: str) -> None:
    with pytest.raises(ProtocolError, match=r"Code: 497\."):
        statement({}, sql.encode())


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count() FROM turns WHERE text LIKE '%the file''s end%' AND x = 'INTO OUTFILE'",
        'SELECT profile, file_name, "my file_name" FROM t',
        'INSERT INTO t FORMAT JSONEachRow\n{"x": "file(\'a\')"}',
    ],
)
def test_texts_and_longer_names_may_speak_of_files(sql: str) -> None:
    assert not reads_files(statement({}, sql.encode()).sql)


def test_a_stack_s_secrets_are_random_private_and_stay(tmp_path: Path) -> None:
    assert read_secrets(tmp_path) != read_secrets(tmp_path)
    first = keep_secrets(tmp_path)
    assert read_secrets(tmp_path) == keep_secrets(tmp_path) == first
    assert stat.S_IMODE((tmp_path / "secrets.json").stat().st_mode) == 0o600
    assert len({first.clickhouse_password, first.s3_secret_key, *keep_secrets_of(tmp_path / "other")}) == 4


def keep_secrets_of(directory: Path) -> tuple[str, str]:
    directory.mkdir()
    other = keep_secrets(directory)
    return other.clickhouse_password, other.s3_secret_key


def test_broken_secrets_are_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "secrets.json").write_text("{")
    with pytest.raises(ConfigError, match=r"secrets\.json cannot be read"):
        read_secrets(tmp_path)
