"""`ratchet alerts`: what holds now, what was sent to whom, and whether an alert reaches its receivers."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ratchet.cli.connections import alerts_shown, connected, settings_of
from ratchet.cli.endpoints import locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.options import HERE, AsJson, Directory
from ratchet.cli.output import console, print_answer, print_section, print_table
from ratchet.core.contract import Alert
from ratchet.core.contract.http.console import AlertsOut, ReceiverOut

if TYPE_CHECKING:
    from ratchet.core.service.settings import SharedSettings

app = typer.Typer(no_args_is_help=True)

WAIT_S, LOOK_S = 45.0, 1.0
"""Two notifications of a receiver are half a minute apart."""


@app.command("list")
def list_alerts(as_json: AsJson = False, directory: Directory = HERE) -> None:
    """List the alerts that hold, and the receivers with their states."""
    shown = asyncio.run(alerts_shown(settings_of(locate(directory))))
    print_answer(shown, as_json, lambda: _draw(shown))


@app.command("sent")
def list_sent(
    receiver: Annotated[str | None, typer.Option(help="To this receiver alone.", show_default=False)] = None,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """List what was sent to whom, newest first."""
    every = asyncio.run(alerts_shown(settings_of(locate(directory)))).receivers
    chosen = [known for known in every if receiver in (None, known.name)]
    if receiver is not None and not chosen:
        raise typer.BadParameter(f"there is no receiver {receiver!r}; there are: {_names(every)}")
    rows = sorted(((sent.at, known.name, sent) for known in chosen for sent in known.sent), key=lambda row: row[0])
    columns = ("at", "receiver", "notification", "alerts", "attempts", "given up")
    lines = [(at, name, sent.title, sent.alerts, sent.attempts, sent.error) for at, name, sent in reversed(rows)]
    print_answer({"receivers": chosen}, as_json, lambda: print_table(columns, lines, "nothing was sent yet"))


@app.command("test")
def try_receivers(
    severity: Annotated[Literal["info", "warning", "critical"], typer.Option(help="Its severity.")] = "critical",
    role: Annotated[str | None, typer.Option(help="The role that it concerns.", show_default=False)] = None,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Raise an alert, wait for the receivers to get it, and clear it. Exit code 3: none got it within 45 s."""
    key, names = asyncio.run(_tried(settings_of(locate(directory)), severity, role))
    words = f"sent to {', '.join(names)}" if names else "no receiver got it: see `ratchet alerts list`"
    print_answer({"key": key, "sent_to": names}, as_json, words)
    if not names:
        raise typer.Exit(ExitCode.PARTLY)


async def _tried(settings: SharedSettings, severity: str, role: str | None) -> tuple[str, list[str]]:
    key, names, until = f"test:{uuid.uuid4().hex[:8]}", list[str](), time.monotonic() + WAIT_S
    await _publish(settings, key, severity, role, cleared=False)
    while time.monotonic() < until:
        shown = await alerts_shown(settings)
        names = next((alert.sent_to for alert in shown.alerts if alert.key == key), [])
        if names and not any(receiver.state == "failing" for receiver in shown.receivers):
            break
        await asyncio.sleep(LOOK_S)
    await _publish(settings, key, severity, role, cleared=True)
    return key, names


async def _publish(settings: SharedSettings, key: str, severity: str, role: str | None, *, cleared: bool) -> None:
    async with connected(settings) as bus:
        alert = Alert(
            alert_id=str(uuid.uuid4()),
            key=key,
            severity=severity,
            summary="this is a test of `ratchet alerts test`",
            source="cli",
            at=bus.now(),
            cleared=cleared,
            role=role,
        )
        await bus.publish(alert)


def _draw(shown: AlertsOut) -> None:
    columns = ("severity", "at", "alert", "role", "source", "sent to")
    alerts = [
        (alert.severity, alert.at, alert.summary, alert.role, alert.source, ", ".join(alert.sent_to) or "nowhere")
        for alert in shown.alerts
    ]
    print_table(columns, alerts, "no alert holds")
    if not shown.receivers:
        console.print("no receivers are set: RATCHET_NOTIFIER_RECEIVERS names them", markup=False)
        return
    console.print()
    rows = [
        (
            receiver.name,
            receiver.kind,
            receiver.severity,
            ", ".join(receiver.roles) or "all",
            receiver.state,
            receiver.reason,
            len(receiver.sent),
        )
        for receiver in shown.receivers
    ]
    print_section(("receiver", "kind", "from", "roles", "state", "reason", "sent"), rows)


def _names(receivers: Sequence[ReceiverOut]) -> str:
    return ", ".join(receiver.name for receiver in receivers) or "none"
