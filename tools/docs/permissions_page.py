"""Makes docs/permissions.md, what each user of the broker may do, from the registry that makes these users.

python -m tools.docs.permissions_page           write the page
python -m tools.docs.permissions_page --check   exit 1 when it is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from ratchet.bus.permissions import Rights, rights_of
from ratchet.core.service.contracts import load_contracts
from ratchet.local.local_stack.broker_users import ADMIN, permissions_of_agent, user_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "permissions.md"
CONTRACTS = load_contracts()
ROLE = "support"

HEAD = f"""# Permissions on the broker

Generated from `contracts/topics.json` by `make docs`; do not edit.

Each program has a user of its own on the broker, with a key (an NKEY), and an account of its own. The account imports,
of the one that has the streams and buckets, exactly the subjects that these rights need (`ratchet broker show USER`
lists them): what is not imported is not there, and an answer of the broker comes to the program that has asked,
wherever its question says that it should go.
`tests/integration/test_permissions.py` has every user try everything on a real broker.

- `{ADMIN}` makes streams and buckets and may do everything: the supervisor of `ratchet up`, the containers `init`
  and `streams`.
- An **agent's** user sends trajectories, feedback, preferences, opt-outs and alerts, all but the last for its own roles
  alone. It reads nothing but the broker's answers: of the streams that it sends to how many messages they hold, and
  whether someone whom it can name has opted out (a key of the bucket `opt_outs`, by its whole name).
- A program that reads a stream reads all of it, also what other topics have there: the broker knows no smaller right.
- Who asks how far a stream's consumers are also sees how long their oldest message waits, and can read single messages.
- One that trims a stream could remove all of it: the broker tells no purge up to a message from another one.
- A program appends to its own chain of the audit log (`agent.rl.audit.v1.<program>`), and asks how that ends. The
  broker removes no entry before its time, not for the admin either.
- The commands of operators (`operator`) send everything, for they send dead letters again: keep that key as you
  would a password of an administrator. They write no route and no API key.

How keys are made, given to agents and exchanged: [Operations](operations.md#the-brokers-users).

## Who may do what
"""


def page() -> str:
    """The page."""
    return "".join((HEAD, *_matrix(), *_rights(), _agent()))


def _matrix() -> Iterator[str]:
    """A row for each topic, stream and bucket, a column for each user."""
    programs = sorted(CONTRACTS.programs)
    rights = {program: rights_of(CONTRACTS, program) for program in programs}
    yield "\n**s** sends, **r** reads, **w** writes, **f** asks how far its consumers are, **t** trims, **d** removes"
    yield " single messages.\n\n| |" + "".join(f" `{user_of(program)}` |" for program in programs)
    yield "\n|---|" + "---|" * len(programs)
    for topic in CONTRACTS.topics:
        yield _row(f"`{topic}`", ["s" * (topic in rights[program].sends) for program in programs])
    for stream in CONTRACTS.streams:
        yield _row(f"`{stream}`", [_of_stream(rights[program], stream) for program in programs])
    for bucket in CONTRACTS.buckets:
        yield _row(f"bucket `{bucket}`", [_of_bucket(rights[program], bucket) for program in programs])
    yield "\n"


def _row(name: str, cells: list[str]) -> str:
    return f"\n| {name} |" + "".join(f" {cell} |" for cell in cells)


def _of_stream(rights: Rights, stream: str) -> str:
    consumed = {CONTRACTS.consumers[name].stream for name in rights.consumes}
    letters = {
        "r": stream in rights.reads or stream in consumed,
        "f": stream in rights.follows,
        "t": stream in rights.trims,
        "d": stream in rights.deletes,
    }
    return "".join(letter for letter, holds in letters.items() if holds)


def _of_bucket(rights: Rights, bucket: str) -> str:
    return "rw" if bucket in rights.writes else "r" if bucket in rights.opens else ""


def _rights() -> Iterator[str]:
    yield "\n## What each is for\n\n| user | program | durable consumers |\n|---|---|---|\n"
    for program, spec in sorted(CONTRACTS.programs.items()):
        consumers = ", ".join(f"`{name}`" for name in rights_of(CONTRACTS, program).consumes)
        yield f"| `{user_of(program)}` | {spec.description} | {consumers} |\n"


def _agent() -> str:
    """What stands in the broker's configuration for an agent."""
    subjects = "\n".join(permissions_of_agent(CONTRACTS, [ROLE]).publish)
    return f"\n## An agent of the role {ROLE}\n\n```text\n{subjects}\n```\n"


def main(arguments: list[str]) -> int:
    """Write, or compare."""
    text = page()
    if "--check" not in arguments:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        sys.stderr.write("docs/permissions.md is out of date: run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
