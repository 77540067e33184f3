"""`ratchet open`: the console's pages in the browser."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from ratchet.cli.endpoints import locate
from ratchet.cli.options import AsJson, Directory
from ratchet.cli.output import console, print_answer
from ratchet.core.service.discovery import DEFAULT_DIRECTORY

app = typer.Typer()


@app.command("open")
def open_pages(
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    directory: Directory = DEFAULT_DIRECTORY,
    as_json: AsJson = False,
) -> None:
    """Open the console in the browser, and print its address. Exit code 4: no stack runs."""
    url = f"{locate(directory).url('console')}/"
    opened = not no_browser and webbrowser.open(url)
    print_answer({"url": url, "opened": opened}, as_json, lambda: console.print(url, markup=False, soft_wrap=True))
    if not (opened or no_browser or as_json):
        console.print("no browser could be opened here: open the address in one", markup=False)
