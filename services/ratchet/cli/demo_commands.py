"""`ratchet demo`: the whole loop on this machine, in minutes."""

from __future__ import annotations

import typer


def demo(context: typer.Context) -> None:
    """Run the demo; all options are its own (`ratchet demo --help`)."""
    from importlib.util import find_spec

    from ratchet.kernel.errors import MissingExtra

    for module, extra in (("openai", "demo"), ("torch", "engine"), ("trl", "trainer"), ("chdb", "embedded")):
        if find_spec(module) is None:
            raise MissingExtra(extra, "the demo")
    from ratchet.demo.__main__ import main

    raise typer.Exit(main(context.args) or 0)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})(
        demo
    )
