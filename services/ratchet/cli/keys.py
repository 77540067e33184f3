"""`ratchet keys`: API keys of agents, people and programs."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from ratchet.bus.clock import utc_now
from ratchet.cli.api import get, post, segment
from ratchet.cli.endpoints import locate
from ratchet.cli.ids import key_named
from ratchet.cli.options import HERE, AsJson, Directory, DryRun
from ratchet.cli.output import console, errors, print_answer, print_dry_run, print_table
from ratchet.core.contract.http.keys import KeyCreatedOut, KeyOut, KeysOut, LimitsOut

app = typer.Typer(no_args_is_help=True)

_SPAN = re.compile(r"([1-9][0-9]{0,4})([smhd])")
_NEEDS_PRICES = (
    "the limit in USD counts calls that have a price: set RATCHET_GATEWAY_ENGINE_PRICE, and `prices` of upstreams, "
    "of the gateway"
)
_CLOSES = (
    "from now on every service refuses calls without a key (401): agents, the console, these commands. "
    "Set RATCHET_API_KEY to the key above, and give each agent one of its own: "
    "ratchet keys create NAME --scope infer:ROLE --scope feedback:ROLE"
)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def expiry(text: str | None, now: datetime) -> datetime | None:
    """The time that `90d`, `12h` or an RFC 3339 time stands for. Raises `typer.BadParameter`."""
    if text is None:
        return None
    if span := _SPAN.fullmatch(text):
        return now + timedelta(**{_UNITS[span[2]]: int(span[1])})
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise typer.BadParameter(f"{text!r} is neither a span such as 90d nor a time such as 2026-12-31T00:00:00Z")
    return at


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What logs and audit logs call it: letters, digits, spaces, _.@/-.")],
    scope: Annotated[
        list[str],
        typer.Option(
            help="What it allows; may be given again. `infer:ROLE`, `feedback:ROLE`, `train:ROLE`, `operate:ROLE`,"
            " `view:ROLE`, `annotate:ROLE`; `acme-*`: every role that begins so, `*`: every role, as is `view` alone;"
            " `admin`."
        ),
    ],
    expires: Annotated[str | None, typer.Option(help="When it expires: `90d`, `12h`, or an RFC 3339 time.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Requests at all gateways.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, help="Tokens at all gateways.")] = None,
    usd_per_day: Annotated[
        float | None, typer.Option(help="US dollars in a day (UTC) of all gateways; counts calls with a price.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Create a key and print it, this once. The first one must have the scope `admin`, and closes what was open."""
    given = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "usd_per_day": usd_per_day,
    }
    if usd_per_day is not None and not (math.isfinite(usd_per_day) and usd_per_day > 0):
        raise typer.BadParameter(f"--usd-per-day takes US dollars above 0, not {usd_per_day}")
    limits = {limit: value for limit, value in given.items() if value is not None}
    body: dict[str, Any] = {"name": name, "scopes": scope}  # `Any`: JSON
    if (at := expiry(expires, utc_now())) is not None:
        body["expires_at"] = at.isoformat()
    if limits:
        body["limits"] = limits
    endpoints = locate(directory)
    if dry_run:
        print_dry_run(f"POST {endpoints.url('coordinator')}/v1/keys", body, as_json)
        return
    is_first = not as_json and not get(endpoints, "coordinator", "/v1/keys", KeysOut).keys
    created = post(endpoints, "coordinator", "/v1/keys", KeyCreatedOut, body)
    print_answer(created, as_json, lambda: console.print(created.key, markup=False))
    if not as_json:
        errors.print(f"{created.about.key_id}: keep the key above, it is shown only this once", markup=False)
        if is_first:
            errors.print(_CLOSES, markup=False)
        if usd_per_day is not None:
            errors.print(_NEEDS_PRICES, markup=False)


@app.command("list")
def list_keys(as_json: AsJson = False, directory: Directory = HERE) -> None:
    """List every key that was ever created, newest first, and those of the coordinator's settings, without the keys
    themselves."""
    answer = get(locate(directory), "coordinator", "/v1/keys", KeysOut)
    columns = ("key", "name", "state", "scopes", "limits", "created", "expires", "created by")
    print_answer(answer, as_json, lambda: print_table(columns, [_row(key) for key in answer.keys], "no keys yet"))


@app.command()
def revoke(
    key_id: Annotated[
        str, typer.Argument(help="Its id, as `ratchet keys list` shows it, the beginning of it, or `latest`.")
    ],
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Revoke a key: no request with it is answered any more. Revoking it again changes nothing."""
    endpoints = locate(directory)
    path = f"/v1/keys/{segment(key_named(endpoints, key_id))}/revoke"
    if dry_run:
        print_dry_run(f"POST {endpoints.url('coordinator')}{path}", {}, as_json)
        return
    revoked = post(endpoints, "coordinator", path, KeyOut)
    print_answer(revoked, as_json, f"{revoked.key_id} ({revoked.name}) is revoked")


def _row(key: KeyOut) -> tuple[object, ...]:
    created_at = None if key.created_by == "settings" else key.created_at
    scopes, limits = " ".join(key.scopes), limits_of(key.limits)
    return key.key_id, key.name, key.state, scopes, limits, created_at, key.expires_at, key.created_by


def limits_of(limits: LimitsOut | None) -> str | None:
    """A key's limits in the words of the options; None without any."""
    if limits is None:
        return None
    most_of = (
        (limits.requests_per_minute, "requests/min"),
        (limits.tokens_per_minute, "tokens/min"),
        (limits.usd_per_day, "USD/day"),
    )
    return ", ".join(f"{most} {unit}" for most, unit in most_of if most is not None) or None
