"""From an HTTP request to one statement, from an engine's error to an answer, and who may ask for what."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import lz4.frame
import pytest

from ratchet.core.errors import ConfigError
from ratchet.local.local_stack.clickhouse_access import reads_files, refusal
from ratchet.local.local_stack.clickhouse_statement import (
    ProtocolError,
    decoded,
    engine_error,
    form_parameters,
    statement,
)
from ratchet.local.local_stack.state import keep_secrets, read_secrets

BINARY = bytes(range(256)) + b" FORMAT Native\n"


def test_a_query_in_the_body_keeps_its_own_format() -> None:
    asked = statement({"database": "d"}, b"SELECT 1 AS a\n FORMAT Native")
    assert (asked.output_format, asked.database, asked.returns_rows) == ("Native", "d", True)


def test_a_query_without_a_format_takes_the_default() -> None:
    assert statement({}, b"SELECT 1").output_format == "TabSeparated"
    assert statement({"default_format": "JSON"}, b"SELECT 1").output_format == "JSON"
    assert statement({}, b"SELECT 1", "CSV").output_format == "CSV"


def test_settings_after_the_format_do_not_hide_it() -> None:
    assert statement({}, b"SELECT 1 FORMAT CSV SETTINGS max_threads = 1;").output_format == "CSV"


@pytest.mark.parametrize(
    "head",
    [
        "INSERT INTO t FORMAT Native",
        "insert into `my db`.`my ta``ble` (`a`, `b c`) format Native",
        "INSERT INTO TABLE d.t (a,b) SETTINGS insert_deduplication_token = 'FORMAT x;' FORMAT Native",
        '\n INSERT INTO "d"."t"\n(a)\nFORMAT Native',
    ],
)
def test_the_data_of_an_insert_is_split_from_its_text(head: str) -> None:
    for asked in (statement({}, head.encode() + b"\n" + BINARY), statement({"query": head}, BINARY)):
        assert asked.insert_format == "Native"
        assert asked.body == BINARY
        words = head[: head.upper().rindex("FORMAT")].strip()
        assert f"{asked.sql} {asked.insert_settings}".strip() == words


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (1, 'a FORMAT Native\n')",
        "INSERT INTO t (a) VALUES ('x'), ('(FORMAT CSV')",
        "INSERT INTO t SELECT 1, 'FORMAT Native'",
        "CREATE TABLE t (a UInt8) ENGINE = Memory",
    ],
)
def test_other_statements_stay_whole(sql: str) -> None:
    asked = statement({}, sql.encode())
    assert (asked.sql, asked.insert_format, asked.returns_rows) == (sql, None, False)


LONG = 200_000


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t (" + "event_id, " * 20_000 + "x) SELECT 1",
        "INSERT INTO t (" + "event_id" * 20_000,
        "INSERT INTO t (`" + "\\" * LONG,
        "INSERT INTO t SETTINGS a = '" + "\\'" * LONG + " VALUES (1)",
        "INSERT INTO t SETTINGS " + "a = 1, " * 20_000 + " VALUES (1)",
        "INSERT INTO t SETTINGS a" + " " * LONG + "VALUES (1)",
        "INSERT INTO t" + " " * LONG + "FORMAT",
        "INSERT INTO t FORMAT" + " " * LONG + "(",
        "SELECT 1" + " FORMAT a SETTINGS b" * 20_000 + ";" + " " * LONG + "x",
        "(" * LONG + " " * LONG + "x",
        "/*" * LONG,
        "/* */ " * LONG + "x",
        "--" * LONG,
    ],
    ids=lambda sql: sql[:24],
)
def test_no_statement_takes_longer_than_its_length_explains(sql: str) -> None:
    try:
        asked = statement({}, sql.encode())
    except ProtocolError:
        return
    assert (asked.insert_format, asked.changes_connection) == (None, False)
    assert asked.returns_rows == sql.startswith("SELECT")


def test_parameters_settings_and_the_transport_s_own_are_kept_apart() -> None:
    asked = statement(
        {
            "query": "SELECT {x:String}",
            "param_x": "1",
            "max_threads": "2",
            "query_id": "q",
            "session_id": "s",
            "client_protocol_version": "54405",
        },
        b"",
    )
    assert (asked.parameters, asked.settings) == ({"x": "1"}, {"max_threads": "2"})


@pytest.mark.parametrize(
    "sql", ["SET a = 1", " USE d", "/* hi */ CREATE TEMPORARY TABLE t (a UInt8)", "-- x\nSET a = 1"]
)
def test_statements_that_leave_something_behind_are_known(sql: str) -> None:
    assert statement({}, sql.encode()).changes_connection


def test_comments_do_not_hide_a_select() -> None:
    assert statement({}, b"-- note\n/* more */ WITH 1 AS a SELECT a").returns_rows


@pytest.mark.parametrize(("parameters", "body"), [({}, b""), ({"query": "  "}, b"\n"), ({}, b"SELECT '\xff\xfe'")])
def test_a_request_without_a_readable_query_is_a_syntax_error(parameters: dict[str, str], body: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        statement(parameters, body)
    assert engine_error(str(caught.value))[:2] == (400, "62")


def test_a_form_gives_its_fields_byte_for_byte() -> None:
    parts = {"query": "SELECT {a:String}", "param_a": 'line\r\nline -- "quoted" żółć\n'}
    body = b"".join(
        f'--B\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in parts.items()
    )
    assert form_parameters("multipart/form-data; boundary=B", body + b"--B--\r\n") == parts


def test_a_file_in_a_form_is_refused() -> None:
    body = b'--B\r\nContent-Disposition: form-data; name="t"; filename="t"\r\n\r\nx\r\n--B--\r\n'
    with pytest.raises(ProtocolError, match="External data"):
        form_parameters("multipart/form-data; boundary=B", body)


def packed(plain: bytes) -> bytes:
    """As clients do it."""
    return bytes(lz4.frame.compress(plain, content_checksum=True))


def test_a_plain_body_stays_as_it_is() -> None:
    assert decoded(BINARY, "") == decoded(BINARY, "identity") == BINARY


@pytest.mark.parametrize("frames", [1, 2, 50])
def test_every_frame_of_a_body_is_unpacked(frames: int) -> None:
    plain = [bytes([number]) * 100_000 + BINARY for number in range(frames)]
    assert decoded(b"".join(map(packed, plain)), "lz4") == b"".join(plain)


def damaged_bodies() -> list[bytes]:
    frame = packed(BINARY * 100)
    cut = [frame + frame[:length] for length in (1, len(frame) // 2, len(frame) - 1)]
    flipped = [frame + bytes([frame[0] ^ 0xFF]) + frame[1:], frame + frame[:-1] + bytes([frame[-1] ^ 0xFF])]
    return [b"", b"plain text", *cut, *flipped]


@pytest.mark.parametrize("body", damaged_bodies())
def test_a_body_that_is_damaged_or_not_encoded_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        decoded(body, "lz4")
    assert engine_error(str(caught.value))[1] == "271"


def test_an_unknown_content_encoding_is_refused() -> None:
    with pytest.raises(ProtocolError, match="gzip is not supported"):
        decoded(b"plain text", "gzip")


def test_an_engine_s_error_keeps_its_code_and_loses_its_prefix() -> None:
    text = "Streaming insert finish failed: Code: 60. DB::Exception: Table d.t does not exist. (UNKNOWN_TABLE)"
    status, code, message = engine_error(text)
    assert (status, code) == (404, "60")
    assert message.startswith("Code: 60. DB::Exception")


def test_an_error_without_a_code_is_the_server_s() -> None:
    assert engine_error("out of luck")[:2] == (500, "1002")


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
