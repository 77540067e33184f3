"""ClickHouse's HTTP interface, the pure part: from a request to one statement, from an engine's error to a status.

Query text and data travel in the `query` parameter, in the body, or half in each; an INSERT's data follows its
`FORMAT`. Url parameters that are not the protocol's own are settings of this one query; `param_x` fills `{x:Type}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO

import lz4.frame

from ratchet.local.local_stack.clickhouse_access import reads_files

PROTOCOL_PARAMETERS = frozenset(
    {
        "query",
        "database",
        "user",
        "password",
        "session_id",
        "session_timeout",
        "session_check",
        "close_session",
        "query_id",
        "quota_key",
        "role",
        "compress",
        "decompress",
        "buffer_size",
        "wait_end_of_query",
        "default_format",
        "client_protocol_version",
        "enable_http_compression",
        "send_progress_in_http_headers",
        "http_headers_progress_interval_ms",
        "cancel_http_readonly_queries_on_client_close",
    }
)
"""Url parameters that are no settings for the engine: they are about the transport."""

DEFAULT_FORMAT = "TabSeparated"

# No pattern here may go back and try again: a statement of a person or a tool must never keep the server busy. Hence
# the possessive quantifiers (`++`, `*+`, `?+`).
_NAME = rb'(?:`(?:[^`\\]++|\\.|``)*+`|"(?:[^"\\]++|\\.|"")*+"|\w++)'
_SETTING = rb"\w++\s*+=\s*+(?:'(?:[^'\\]++|\\.|'')*+'|[^\s,'()]++)"
_INSERT_HEAD = re.compile(
    rb"\s*+INSERT\s++INTO\s++(?:TABLE\s++)?+" + _NAME + rb"(?:\s*+\.\s*+" + _NAME + rb")?+\s*+"
    rb"(?:\((?:" + _NAME + rb"|[\s,.])*+\)\s*+)?+"
    rb"(?P<settings>SETTINGS\s++" + _SETTING + rb"(?:\s*+,\s*+" + _SETTING + rb")*+\s*+)?+"
    rb"FORMAT\s++(?P<format>\w++)[ \t]*+(?:\r?\n|;|\Z|(?=[^\w]))",
    re.IGNORECASE,
)
_FORMAT_TAIL = re.compile(r"\bFORMAT\s++(\w++)\s*+(?:SETTINGS\b[^;]*+)?+;?+\s*+\Z", re.IGNORECASE)
_RETURNS_ROWS = re.compile(
    r"\s*+(?:\(\s*+)*+(?:SELECT|WITH|SHOW|DESC|DESCRIBE|EXPLAIN|EXISTS|CHECK|FROM)\b", re.IGNORECASE
)
_CHANGES_CONNECTION = re.compile(r"\s*+(?:SET|USE|CREATE\s++(?:OR\s++REPLACE\s++)?+TEMPORARY)\b", re.IGNORECASE)
_COMMENTS = re.compile(r"\A(?:\s++|--[^\n]*+(?:\n|\Z)|/\*(?:[^*]++|\*(?!/))*+\*/)++")
_CODE = re.compile(r"Code: (\d+)\. ")

_STATUS = {
    **dict.fromkeys((36, 42, 43, 44, 53, 62, 69, 70, 72, 130, 271, 386, 456, 457), 400),
    **dict.fromkeys((46, 47, 50, 56, 60, 81, 115), 404),
    **dict.fromkeys((164, 497, 516), 403),
}
"""HTTP status by exception code, as the server maps them; 500 for all others."""


class ProtocolError(Exception):
    """The request itself is wrong; `code` is ClickHouse's."""

    def __init__(self, code: int, name: str, text: str) -> None:
        super().__init__(f"Code: {code}. DB::Exception: {text}. ({name})")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement for the engine."""

    sql: str
    insert_format: str | None = None
    """Format of `body` when this is an INSERT with data; `sql` then ends before `SETTINGS` and `FORMAT`."""
    insert_settings: str = ""
    """The `SETTINGS` clause of such an INSERT."""
    body: bytes = b""
    output_format: str = DEFAULT_FORMAT
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    database: str | None = None
    read_only: bool = False
    """Whether the engine refuses everything that changes something."""

    @property
    def returns_rows(self) -> bool:
        """True when the answer has a format, even with no row in it."""
        return self.insert_format is None and _RETURNS_ROWS.match(_without_comments(self.sql)) is not None

    @property
    def changes_connection(self) -> bool:
        """True when it leaves something behind in the connection: a setting, a database, a temporary table."""
        return "readonly" in self.settings or _CHANGES_CONNECTION.match(_without_comments(self.sql)) is not None


def statement(
    parameters: Mapping[str, str], body: bytes, default_format: str | None = None, *, read_only: bool = False
) -> Statement:
    """The statement of a request whose body is already decoded. Raises `ProtocolError`."""
    head = parameters.get("query", "").encode()
    text = head + b"\n" + body if head and body else head or body
    if not text.strip():
        raise ProtocolError(62, "SYNTAX_ERROR", "Empty query")
    insert = _INSERT_HEAD.match(text)
    sql = text[: insert.start("format")] if insert else text
    words = re.sub(r"FORMAT\s+\Z", "", _utf8(sql), flags=re.IGNORECASE).strip() if insert else _utf8(sql)
    if reads_files(words) or (insert and insert["format"].lower() == b"values" and reads_files(_utf8(text))):
        # `Values` are expressions, unlike the data of all other formats.
        raise ProtocolError(497, "ACCESS_DENIED", "Files are out of reach here, and so is the word `file` as a name")
    stated = None if insert else _FORMAT_TAIL.search(_utf8(text)[-4096:])
    return Statement(
        sql=_utf8(text[: insert.start("settings")]).rstrip() if insert and insert["settings"] else words,
        insert_format=insert["format"].decode() if insert else None,
        insert_settings=_utf8(insert["settings"]).strip() if insert and insert["settings"] else "",
        body=text[insert.end() :] if insert else b"",
        output_format=stated[1] if stated else parameters.get("default_format") or default_format or DEFAULT_FORMAT,
        parameters={key.removeprefix("param_"): value for key, value in parameters.items() if key.startswith("param_")},
        settings={
            key: value
            for key, value in parameters.items()
            if key not in PROTOCOL_PARAMETERS and not key.startswith("param_")
        },
        database=parameters.get("database") or None,
        read_only=read_only,
    )


def form_parameters(content_type: str, body: bytes) -> dict[str, str]:
    """The plain fields of a `multipart/form-data` body. Files (external data) are refused."""
    boundary = re.search(r'boundary="?([^";]+)"?', content_type)
    if boundary is None:
        raise ProtocolError(36, "BAD_ARGUMENTS", "multipart body without a boundary")
    fields: dict[str, str] = {}
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary[1].encode())[1:]:
        head, separator, value = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        if not separator:
            continue
        name = re.search(rb'\bname="([^"]*)"', head)
        if name is None or b"filename=" in head:
            raise ProtocolError(48, "NOT_IMPLEMENTED", "External data is not supported here")
        fields[name[1].decode()] = _utf8(value)
    return fields


def decoded(body: bytes, encoding: str) -> bytes:
    """`body` without its Content-Encoding: all of its frames: clients write one for each block of rows."""
    if encoding in ("", "identity"):
        return body
    if encoding != "lz4":
        raise ProtocolError(271, "CANNOT_DECOMPRESS", f"Content-Encoding {encoding} is not supported")
    try:
        return lz4.frame.open(BytesIO(body)).read()  # pyright: ignore - the library has no types
    except (RuntimeError, EOFError) as error:
        raise ProtocolError(271, "CANNOT_DECOMPRESS", f"The body is damaged or not {encoding}: {error}") from error


def engine_error(text: str) -> tuple[int, str, str]:
    """HTTP status, ClickHouse's exception code and the message of an engine's error."""
    code = _CODE.search(text)
    if code is None:
        return 500, "1002", f"Code: 1002. DB::Exception: {text}. (UNKNOWN_EXCEPTION)"
    return _STATUS.get(int(code[1]), 500), code[1], text[code.start() :]


def _without_comments(sql: str) -> str:
    return _COMMENTS.sub("", sql)


def _utf8(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(62, "SYNTAX_ERROR", f"The query is not UTF-8: {error}") from error
