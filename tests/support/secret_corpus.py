"""Planted secrets: every kind of the redaction's table, and names of secrets, in the ways in which agents write them.

The corpus is made of the same table as the rules (`ratchet.core.rules.redaction.kinds`): an example of each row in each
wrapping, and each name in each way of writing name and value.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

from ratchet.core.rules.redaction.kinds import KINDS, Kind

SIZE = 400
"""Plants of the corpus."""


@dataclass(frozen=True)
class Plant:
    """One secret, where it stands, and the texts that must be nowhere afterwards."""

    label: str
    value: Any
    """JSON: a text, or what holds it."""
    traces: tuple[str, ...]


SECRETS: dict[str, Callable[[str], str]] = {
    "password in a URL": lambda text: "lovelace@",
    "user and password of a command": lambda text: "lovelace1",
    "value beside its name": lambda text: "hunter2",
    "bearer token": lambda text: "abc123def456",
}
"""Of an example that holds more than the secret, the secret."""


def _entities(text: str) -> str:
    return "".join(character if character.isalnum() else f"&#{ord(character)};" for character in text)


_WIDE = {number: number + 0xFEE0 for number in (*range(48, 58), *range(64, 91), *range(97, 123))}
"""To the characters of East Asian full width."""
WRAPPINGS: dict[str, Callable[[str], Any]] = {
    "prose": lambda s: f"Please note {s}, and thanks.",
    "end of a sentence": lambda s: f"it is {s}.",
    "quotes": lambda s: f'he wrote "{s}" today',
    "underscore before": lambda s: f"see _{s}_ there",
    "brackets": lambda s: f"({s}) [{s}]",
    "markdown": lambda s: f"| a | b |\n|---|---|\n| `{s}` | **{s}** |",
    "JSON value": lambda s: {"note": s, "n": 1},
    "JSON in text": lambda s: json.dumps({"note": f"see {s}", "n": [1, 2]}),
    "JSON in JSON": lambda s: json.dumps({"args": json.dumps({"note": s})}),
    "broken JSON": lambda s: json.dumps({"note": s})[:-1] + ", cut",
    "YAML": lambda s: f"user:\n  note: {s}\n  n: 1",
    "log": lambda s: f"2026-11-28T10:00:00Z INFO request done note={s} ms=12",
    "code": lambda s: f"note = {s!r}\nprint(note)",
    "list": lambda s: [{"texts": ["a", s]}],
    "name of a member": lambda s: {s: 1},
    "tab": lambda s: f"a\t{s}\tb",
    "percent signs": lambda s: f"https://x.example/q?note={quote(s, safe='')}&n=1",
    "entities": lambda s: f"<td>{_entities(s)}</td>",
    "full width": lambda s: f"see {s.translate(_WIDE)} there",
    "base64": lambda s: f"data {base64.b64encode(f'the note is {s} and more'.encode()).decode()} end",
    "base64 in a path": lambda s: f"/a/{base64.b64encode(f'the note is {s} and more'.encode()).decode()}",
}
"""Of a secret that is known by its form."""

NOT_IN: dict[str, frozenset[str]] = {
    "private key (PEM)": frozenset({"code", "entities", "percent signs", "markdown"}),
    "password in a URL": frozenset({"percent signs", "entities", "name of a member"}),
    "user and password of a command": frozenset({"percent signs", "entities"}),
    "value beside its name": frozenset(WRAPPINGS) - {"prose", "YAML", "tab"},
    "Artifactory token": frozenset(
        {"prose", "end of a sentence", "underscore before", "brackets", "markdown", "percent signs", "entities", "log"}
    ),
    "bearer token": frozenset({"percent signs", "entities"}),
}
"""Wrappings in which a kind is not written, or is not known (the guide says so)."""

NAMES = tuple(
    name
    for line in (
        "password db_passwd newPassword PGPASSWORD user.passphrase passcode pwd apiKey API_KEY x-api-key github_token",
        "webhook_secret signing_key access_key aws_secret_access_key client_secret private_key accessToken",
        "refresh_token X-Amz-Security-Token credentials stripe_api_key slackBotToken JWT_SECRET encryption-key",
    )
    for name in line.split()
)
NUMBER_NAMES = ("pin", "otp", "ssn", "cvv")

WAYS: dict[str, Callable[[str, str], Any]] = {
    "member": lambda n, v: {n: v},
    "list": lambda n, v: {n: [v, v]},
    "pairs": lambda n, v: {"headers": [["Accept", "x"], [n, v]]},
    "name and value": lambda n, v: {"env": [{"name": n, "value": v}]},
    "key and value": lambda n, v: [{"key": n, "value": v, "n": 1}],
    "object": lambda n, v: {n: {"value": v}},
    "objects": lambda n, v: {n: [{"of": "db", "is": v}]},
    "options": lambda n, v: {"argv": ["run", f"--{n}", v]},
    "JSON": lambda n, v: json.dumps({n: v, "x": 1}),
    "compact JSON": lambda n, v: json.dumps({"a": {n: v}}, separators=(",", ":")),
    "JSON in JSON": lambda n, v: json.dumps({"body": json.dumps({n: v})}),
    "escaped and cut": lambda n, v: json.dumps({"body": json.dumps({n: v})})[:-2] + " cut",
    "broken JSON": lambda n, v: f'{{"{n}": "{v}", "x": tru',
    "YAML": lambda n, v: f"db:\n  {n}: {v}\n  x: 1\n",
    "YAML, quoted": lambda n, v: f"{n}: '{v}'",
    "YAML, below": lambda n, v: f"{n}:\n  {v}\n",
    "YAML, a list below": lambda n, v: f"{n}:\n  - {v}\n",
    "YAML, named": lambda n, v: f"env:\n- name: {n}\n  value: {v}\n",
    ".env": lambda n, v: f"A=1\n{n}={v}\nB=2",
    "export": lambda n, v: f"export {n}={v}",
    "ini": lambda n, v: f"[db]\n{n} = {v}\n",
    "log": lambda n, v: f"12:00:01 INFO connected {n}={v} in 3 ms",
    "Python": lambda n, v: f'{n.replace("-", "_")} = "{v}"',
    "keyword": lambda n, v: f"connect(host='h', {n.replace('-', '_')}='{v}', port=1)",
    "dict": lambda n, v: f"{{'{n}': '{v}'}}",
    "JavaScript": lambda n, v: f"const {n.replace('-', '_')} = '{v}';",
    "Go": lambda n, v: f'{n.replace("-", "_")} := "{v}"',
    "Ruby": lambda n, v: f':{n.replace("-", "_")} => "{v}"',
    "XML": lambda n, v: f"<c><{n}>{v}</{n}></c>",
    "XML, a key": lambda n, v: f'<add key="{n}" value="{v}"/>',
    "XML, named": lambda n, v: f'<property name="{n}" value="{v}"/>',
    "URL": lambda n, v: f"GET https://x.example/y?{n}={v}&z=1",
    "option": lambda n, v: f"$ run --{n} {v} --fast",
    "option with =": lambda n, v: f"$ run --{n}={v}",
    "header": lambda n, v: f"Host: x\r\n{n}: {v}\r\nAccept: y",
}
"""Of a name and its value."""


def _forms(kind: Kind) -> Iterator[Plant]:
    for example in kind.examples:
        for wrapping, wrap in WRAPPINGS.items():
            if wrapping in NOT_IN.get(kind.title, ()):
                continue
            secret = SECRETS.get(kind.title, str.strip)(example)
            traces = {secret, quote(secret, safe=""), _entities(secret), json.dumps(secret)[1:-1]}
            if wrapping == "full width":
                traces = {secret.translate(_WIDE)}
            if wrapping.startswith("base64"):
                traces = {base64.b64encode(f"the note is {example} and more".encode()).decode()[20:40]}
            yield Plant(f"{kind.title} / {wrapping} / {example[:12]}", wrap(example), tuple(sorted(traces)))


def _named() -> Iterator[Plant]:
    generator = random.Random(26)
    letters = "abcdefghjkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
    for way, write in WAYS.items():
        for name in NAMES:
            value = "".join(generator.choices(letters, k=18)) + "7x"
            yield Plant(f"{name} / {way}", write(name, value), (value,))
        for name in NUMBER_NAMES:
            value = "".join(generator.choices("123456789", k=9))
            yield Plant(f"{name} / {way}", write(name, value), (value,))


@cache
def every_plant() -> list[Plant]:
    """All kinds in all wrappings, and all names in all ways."""
    return [*(plant for kind in KINDS for plant in _forms(kind)), *_named()]


def corpus(size: int = SIZE) -> list[Plant]:
    """`size` plants, drawn once and for all: half by form, every row of the table among them, and half by name."""
    forms = [plant for kind in KINDS for plant in _forms(kind)]
    names = list(_named())
    first = {plant.label.partition(" / ")[0]: plant for plant in reversed(forms)}
    generator = random.Random(400)
    rest = [plant for plant in forms if plant not in first.values()]
    drawn = [*first.values(), *generator.sample(rest, size // 2 - len(first))]
    return [*drawn, *generator.sample(names, size - len(drawn))]
