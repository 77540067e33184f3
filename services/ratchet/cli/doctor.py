"""`ratchet doctor`: checks this machine and its stack, and says what to do about what is wrong.

All checks run at the same time, each within a deadline, so that a server that hangs is one line and holds nothing up.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Mapping

import msgspec
import typer

from ratchet.cli.doctor_checks import MACHINE, Finding, State, failure
from ratchet.cli.doctor_servers import SERVERS
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.options import HERE, AsJson, Directory
from ratchet.cli.output import console, print_answer, print_table
from ratchet.core.errors import RatchetError

app = typer.Typer()

DEADLINE_S = 20.0
"""A check that has not ended by then is a failure: a server accepts connections and answers nothing."""
Check = Callable[[Endpoints], Finding]


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What one check says."""

    check: str
    state: State
    sentence: str
    remedy: str | None


@app.command()
def doctor(as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Check this machine, the stack and its servers, and say what to do. Exit code 3: warnings alone; 1: a failure.

    It works beside a running stack, a stopped one and one that hangs, and changes nothing.
    """
    results = examined(locate(directory))
    print_answer({"checks": results}, as_json, lambda: show(results))
    if amiss := [result.check for result in results if result.state != "ok"]:
        sys.stderr.write(f"ratchet: needs a look: {', '.join(amiss)}\n")
    raise typer.Exit(code_of(results))


def examined(
    endpoints: Endpoints, checks: Mapping[str, Check] | None = None, deadline_s: float = DEADLINE_S
) -> list[Checked]:
    """The results of checks: by default of all that there are for a machine with or without a stack."""
    if checks is None:
        checks = {**MACHINE, **(SERVERS if endpoints.known else {})}

    async def all_at_once() -> list[Checked]:
        return [*await asyncio.gather(*(_one(name, check, endpoints, deadline_s) for name, check in checks.items()))]

    return asyncio.run(all_at_once())


def code_of(results: list[Checked]) -> ExitCode:
    """Failed with a failure, partly with warnings alone."""
    states = {result.state for result in results}
    return ExitCode.FAILED if "failure" in states else ExitCode.PARTLY if "warning" in states else ExitCode.DONE


async def _one(name: str, check: Check, endpoints: Endpoints, deadline_s: float) -> Checked:
    finding: Finding
    try:
        finding = await asyncio.wait_for(_in_thread(lambda: check(endpoints)), deadline_s)
    except TimeoutError:
        finding = failure(
            f"no answer within {deadline_s:g} s: it hangs, or this machine is overloaded",
            "see `ratchet status` and `ratchet logs`; the supervisor restarts a process that answers nothing",
        )
    except (RatchetError, OSError) as error:
        finding = failure(str(error) or type(error).__name__, None)
    except Exception as error:  # noqa: BLE001 - one check that breaks must not cost the results of the others
        finding = failure(f"could not be checked: {type(error).__name__}: {error}", None)
    return Checked(check=name, state=finding.state, sentence=finding.sentence, remedy=finding.remedy)


async def _in_thread(call: Callable[[], Finding]) -> Finding:
    """The call's result. Its thread keeps the process from nothing: one that hangs is left behind."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    result: list[Finding | BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            result.append(error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, daemon=True).start()
    await done.wait()
    if isinstance(result[0], BaseException):
        raise result[0]
    return result[0]


def show(results: list[Checked]) -> None:
    """A line for each, then what to do."""
    print_table(("check", "state", "what"), [(result.check, result.state, result.sentence) for result in results], "")
    remedies = [(result.check, result.remedy) for result in results if result.remedy and result.state != "ok"]
    for check, remedy in remedies:
        console.print(f"\n{check}: {remedy}", markup=False)
