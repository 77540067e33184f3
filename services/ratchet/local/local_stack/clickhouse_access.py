"""Who may ask the embedded ClickHouse for what: the password, the engine's grants, and what the grants cannot forbid.

The engine keeps statements from other places by itself: its only user has no grant to read or write files, urls and
other servers, and none to make tables of such engines. Two ways around grants are closed by words: the scalar function
`file`, and `INTO OUTFILE` with `FROM INFILE`.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

import psutil

from ratchet.local.local_stack.ports import LOOPBACK

USER = "ratchet"
"""The one user of the warehouse, as in docker-compose.yml."""

PASSWORD_VARIABLE = "RATCHET_EMBEDDED_CLICKHOUSE_PASSWORD"  # noqa: S105 - the name of a variable
"""Says the server its user's password: in the environment, where only this user's processes can read it."""

GRANTS = (
    "SHOW, SELECT, INSERT, ALTER, TRUNCATE, OPTIMIZE, KILL QUERY ON *.*",
    "CREATE DATABASE, CREATE TABLE, CREATE VIEW, CREATE TEMPORARY TABLE ON *.*",
    "DROP DATABASE, DROP TABLE, DROP VIEW, UNDROP TABLE ON *.*",
    "SYSTEM MERGES, SYSTEM FLUSH ON *.*",
)
ENGINES = (
    *(f"{kind}MergeTree" for kind in ("", "Replacing", "Summing", "Aggregating", "Collapsing", "VersionedCollapsing")),
    *("Memory", "Null", "Log", "TinyLog", "StripeLog", "Set", "Join", "Buffer"),
)
"""Table engines that keep their rows here, and nowhere else."""

MEMORY_SHARE, MEMORY_LEAST_BYTES = 0.25, 1 << 30
"""The engine takes a quarter of the machine's memory, and never less than 1 GiB; what needs more is refused (241)."""

KEPT_FREE_BYTES = 64 << 20
"""What the engine leaves free on its disk: where others take the last of it while a part is written, chDB 4.4 reports
success for a part with empty files."""
SOURCES_KEPT_S = 480
"""Parts that were merged stay so long, ClickHouse's own default: chDB's is 0, though it does not sync what it merged. A
merged part that is damaged is put aside at the next start, and they take its place."""

_STRING = re.compile(r"'(?:[^'\\]++|\\.?|'')*+(?:'|\Z)", re.DOTALL)
_OTHER_QUOTING = re.compile(r"\$|--|/\*|#|[^\x00-\x7f]")
"""Heredocs, comments and typographic quotes: in a statement with any of them, texts and names look alike."""
_READS_FILES = re.compile(r"\b(?:file|INTO\s++OUTFILE|FROM\s++INFILE)\b", re.IGNORECASE)
_ESCAPE_IN_NAME = re.compile(r'[`"][^`"\\]*+\\')


def engine_config(users_file: str, memory_bytes: int, keys: Sequence[str] = ()) -> str:
    """The engine's configuration file. `keys`: variables with the keys of an encrypted disk, on which all tables lie
    then; the first one writes."""
    named = "".join(f'<key_hex id="{place}" from_env="{name}"/>' for place, name in enumerate(keys))
    disk = (
        f"<encrypted><type>encrypted</type><disk>default</disk><path>encrypted/</path>"
        f"<algorithm>AES_256_CTR</algorithm>{named}<current_key_id>0</current_key_id></encrypted>"
    )
    policy = "<policies><encrypted><volumes><main><disk>encrypted</disk></main></volumes></encrypted></policies>"
    tables = "<storage_policy>encrypted</storage_policy>"
    return (
        f"<clickhouse><users_config>{escape(users_file)}</users_config>"
        f"<max_server_memory_usage>{memory_bytes}</max_server_memory_usage>"
        f"<merge_tree><old_parts_lifetime>{SOURCES_KEPT_S}</old_parts_lifetime>{tables if keys else ''}</merge_tree>"
        "<storage_configuration><disks><default>"
        f"<keep_free_space_bytes>{KEPT_FREE_BYTES}</keep_free_space_bytes>"
        f"</default>{disk if keys else ''}</disks>{policy if keys else ''}</storage_configuration></clickhouse>"
    )


def engine_users() -> str:
    """The engine's user, its grants, and no table of its on another disk."""
    grants = [*GRANTS, *(f"TABLE ENGINE ON {engine}" for engine in ENGINES)]
    return (
        "<clickhouse><profiles><default>"
        "<constraints><merge_tree_disk><readonly/></merge_tree_disk>"
        "<merge_tree_storage_policy><readonly/></merge_tree_storage_policy></constraints>"
        "</default></profiles><quotas><default/></quotas>"
        "<users><default><password/><networks><ip>::/0</ip></networks>"
        "<profile>default</profile><quota>default</quota>"
        f"<grants>{''.join(f'<query>GRANT {grant}</query>' for grant in grants)}</grants>"
        "</default></users></clickhouse>"
    )


def memory_bound() -> int:
    """Bytes that the engine may take on this machine."""
    return max(MEMORY_LEAST_BYTES, int(psutil.virtual_memory().total * MEMORY_SHARE))


def reads_files(sql: str) -> bool:
    """Whether a statement has the words that reach files in spite of the grants; when in doubt, it has.

    Texts between single quotes may say `file`; a statement with comments, or with quotes of another kind, may not.
    """
    plain = sql if _OTHER_QUOTING.search(sql) else _STRING.sub("''", sql)
    return _READS_FILES.search(plain) is not None or _ESCAPE_IN_NAME.search(plain) is not None


def refusal(headers: Mapping[str, str], port: int, password: str) -> str | None:
    """Why a request with these headers (names in lower case) is refused, None when it is not.

    Pages in a browser are kept out twice: they send an Origin, or a Host that is not this machine.
    """
    if headers.get("host", "") not in (f"{LOOPBACK}:{port}", f"localhost:{port}"):
        return "this server answers to its own address only"
    if "origin" in headers:
        return "this server does not answer pages in a browser"
    if not hmac.compare_digest(_credentials(headers).encode(), f"{USER}:{password}".encode()):
        return f"user {USER} and the stack's password are needed: `ratchet env` shows RATCHET_CLICKHOUSE_URL"
    return None


def _credentials(headers: Mapping[str, str]) -> str:
    """`user:password`, from either of the two ways to send them; empty when there are none."""
    kind, _, given = headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return f"{headers.get('x-clickhouse-user', '')}:{headers.get('x-clickhouse-key', '')}"
    try:
        return base64.b64decode(given, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
