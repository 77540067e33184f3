"""`nats pub` over a raw socket, for a machine without the nats command: the flags that our documentation uses.

Sends exactly the given headers and body, as HPUB with a reply, and waits for the stream's answer.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from typing import BinaryIO
from urllib.parse import urlsplit

INBOX = "_INBOX.nats_pub"
DEADLINE_S = 10.0


def arguments() -> argparse.Namespace:
    """The command line; an unknown flag is an error."""
    parser = argparse.ArgumentParser(prog="nats", allow_abbrev=False)
    pub = parser.add_subparsers(required=True).add_parser("pub", allow_abbrev=False)
    pub.add_argument("subject")
    pub.add_argument("-H", "--header", action="append", default=[])
    for flag in ("--jetstream", "--force-stdin", "--no-templates"):
        pub.add_argument(flag, action="store_true", required=True)
    return parser.parse_args()


def hpub(subject: str, headers: list[str], body: bytes) -> bytes:
    """One HPUB frame. Source: NATS client protocol, HPUB."""
    fields = [line.partition(":") for line in headers]
    head = "NATS/1.0\r\n" + "".join(f"{name.strip()}: {value.strip()}\r\n" for name, _, value in fields) + "\r\n"
    sizes = f"{len(head.encode())} {len(head.encode()) + len(body)}"
    return f"HPUB {subject} {INBOX} {sizes}\r\n{head}".encode() + body + b"\r\n"


def answer(lines: BinaryIO) -> dict[str, object]:
    """The stream's answer, or the broker's error when no stream stores the subject."""
    for line in lines:
        words = line.split()
        if words[:1] == [b"MSG"]:
            return json.loads(lines.read(int(words[-1])))
        if words[:1] in ([b"HMSG"], [b"-ERR"]):
            return {"error": "no stream stores this subject" if words[0] == b"HMSG" else line.decode()}
    return {"error": "the broker closed the connection"}


def main() -> int:
    """Publish standard input."""
    parsed = arguments()
    url = urlsplit(os.environ["NATS_URL"])
    options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "lang": "test"}
    if url.username is not None:
        options |= {"user": url.username, "pass": url.password or ""}
    with (
        socket.create_connection((url.hostname, url.port), DEADLINE_S) as connection,
        connection.makefile("rb") as lines,
    ):
        connection.sendall(f"CONNECT {json.dumps(options)}\r\nSUB {INBOX} 1\r\n".encode())
        connection.sendall(hpub(parsed.subject, parsed.header, sys.stdin.buffer.read()))
        reply = answer(lines)
    sys.stdout.write(json.dumps(reply) + "\n")
    return 1 if "error" in reply else 0


if __name__ == "__main__":
    sys.exit(main())
