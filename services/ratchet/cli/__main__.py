"""The `ratchet` command.

Exit codes, the same for every command:

    0    it worked
    1    it did not, and one line on standard error says why
    2    the command line itself is wrong
    3    it worked in part: some records were skipped, something is not ready
    4    there is no running stack (`status`)
    130  interrupted
"""

from __future__ import annotations

import sys

import typer

from ratchet.cli import (
    deadletter_commands,
    demo_commands,
    feedback_commands,
    import_commands,
    job_commands,
    policy_commands,
    rollout_commands,
    stack_commands,
    status_commands,
)
from ratchet.kernel.errors import RatchetError

app = typer.Typer(
    name="ratchet",
    help="The learning loop for LLM agents in production: collect, reward, train, canary, roll back.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

for group in (
    stack_commands,
    status_commands,
    job_commands,
    policy_commands,
    feedback_commands,
    demo_commands,
):
    group.register(app)
app.add_typer(import_commands.app, name="import")
app.add_typer(rollout_commands.app, name="rollout")
app.add_typer(deadletter_commands.app, name="deadletters")


def main() -> int:
    """Run the command of `sys.argv`; an error that we know is one line, never a traceback."""
    try:
        app()
    except RatchetError as error:
        sys.stderr.write(f"ratchet: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
