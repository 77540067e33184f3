"""`ratchet url` and `ratchet open`: the addresses of the running system, for scripts and in the browser."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import NoStack
from ratchet.cli.options import HERE, AsJson, Directory
from ratchet.cli.output import console, print_answer
from ratchet.core.errors import NotFound
from ratchet.local.local_stack.catalog import ALL_SERVICES, GATEWAY, health_port_name, port_name

app = typer.Typer()

SERVERS = {
    "nats": "RATCHET_NATS_URL",
    "s3": "RATCHET_S3_ENDPOINT",
    "clickhouse": "RATCHET_CLICKHOUSE_URL",
}


@app.command("url")
def url(
    name: Annotated[
        str,
        typer.Argument(help="A server or service, such as `coordinator`, or its health, such as `gateway_health`."),
    ] = "",
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Print the gateway's base URL for agents, or the address of any part of the running system.

    That of ClickHouse has its password. `--json` without a name prints all. Exit code 4: no stack runs.
    """
    endpoints = locate(directory)
    endpoints.require()
    known = addresses(endpoints)
    if not name and as_json:
        print_answer({"base_url": base_url(known), "addresses": known}, as_json, "")
        return
    asked = port_name(name)
    if name and asked not in known:
        raise NotFound(f"there is no {name} in this system; there are {', '.join(known)}")
    shown = known[asked] if name else base_url(known)
    if shown is None:
        raise NoStack(f"the stack in {directory} has no gateway; there are {', '.join(known)}")
    print_answer({"url": shown}, as_json, lambda: console.print(shown, markup=False, soft_wrap=True))


def base_url(known: dict[str, str]) -> str | None:
    """What an OpenAI client takes; None without a gateway."""
    return f"{known[GATEWAY]}/v1" if GATEWAY in known else None


def addresses(endpoints: Endpoints) -> dict[str, str]:
    """The address of each server, service and health port that is known, by the names of their ports."""
    known = {name: endpoints.env[variable] for name, variable in SERVERS.items() if variable in endpoints.env}
    services = endpoints.record.services if endpoints.record is not None else {}
    for spec in ALL_SERVICES:
        if spec.port is not None and (spec.name in services or spec.url_variable in endpoints.env):
            try:
                known[spec.short] = endpoints.url(spec.short)
            except NoStack:
                continue
        if (member := services.get(spec.name)) is not None and member.health_port is not None:
            known[f"{spec.short}_health"] = f"http://127.0.0.1:{member.health_port}"
    further = {name: member for name, member in services.items() if name.startswith(f"{GATEWAY}-")}
    return known | {
        health_port_name(name): f"http://127.0.0.1:{member.health_port}" for name, member in further.items()
    }


@app.command("open")
def open_pages(
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    directory: Directory = HERE,
    as_json: AsJson = False,
) -> None:
    """Open the console in the browser, and print its address. Exit code 4: no stack runs."""
    url = f"{locate(directory).url('console')}/"
    opened = not no_browser and webbrowser.open(url)
    print_answer({"url": url, "opened": opened}, as_json, lambda: console.print(url, markup=False, soft_wrap=True))
    if not (opened or no_browser or as_json):
        console.print("no browser could be opened here: open the address in one", markup=False)
