"""The scripted model behind every API of the provider: what it says next in each task.

It finds the task by a word in the request, and how far the agent is with it by the results of tools that the request
holds, however a framework writes them. What it says is a message of the chat API; `native` puts it into the other ones.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from typing import Any

TASKS = ("plain", "stream", "tools", "parallel", "schema", "retry", "delegate", "errand", "code", "compact")
"""The tasks; a prompt names its own as `task-<name>`. Who delegates also writes the name of the errand."""
ANSWER = "All orders are on their way."
"""What the model says at the end of every task but `schema`."""
SCHEMA = {"city": "Bern", "days": 3}
"""What it answers where a form is asked for."""
RESULTS = ("K47-packed", "K48-shipped")
"""What the tool `look_up` says of the orders K47 and K48."""
FILE, CONTENT = "greeting.txt", "hello world"
"""What a coding agent's task leaves: a file that a shell writes and an edit changes."""

_PATCH = f"*** Begin Patch\\n*** Update File: {FILE}\\n@@\\n-hello\\n+{CONTENT}\\n*** End Patch"
_ERRAND = "task-errand: count the files, then say where the orders are."
_WRITE = f"echo hello > {FILE}"


def task_in(text: str) -> str:
    """The task that a request is about."""
    return next((task for task in TASKS if f"task-{task}" in text), "plain")


def next_message(task: str, tools: Sequence[str], text: str, results: int) -> dict[str, Any]:
    """What the model says next.

    `tools`: the names of those that it may call. `text`: the whole request, in which the results of tools stand, and
    `results` their number.
    """
    if task == "compact" and ANSWER in text:
        return _text(ANSWER)  # the summary that it gave before
    if task in {"code", "delegate", "errand", "compact"}:
        steps = _steps(task, tools, text)
        return _calls(steps[results]) if results < len(steps) else _text(ANSWER)
    return _fields(task, text) or _message(task, tools, text)


def _message(task: str, tools: Sequence[str], text: str) -> dict[str, Any]:
    if task == "schema":
        return _calls((tools[0], SCHEMA)) if tools else _text(json.dumps(SCHEMA))
    if task in {"tools", "parallel"}:
        missing = [order for order, result in zip(("K47", "K48"), RESULTS, strict=True) if result not in text]
        needed = missing[:1] if task == "tools" else missing
        if needed:
            return _calls(*(_looked_up(tools, order) for order in needed))
    last = next((name for name in ("final_answer", "submit") if name in tools), None)
    if last is not None:
        return _calls((last, {"answer": ANSWER}))
    if "bash" in tools:
        return _calls(("bash", {"command": f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo '{ANSWER}'"}))
    return _text(ANSWER)


def _steps(task: str, tools: Sequence[str], text: str) -> list[tuple[str, dict[str, Any]]]:
    """What a coding agent is made to do, by its own tools: Claude Code's, or those that Codex's scripts call."""
    if "Bash" in tools:
        return _claude_steps(task, text)
    prefix = next(name for name in tools if name.endswith("exec")).removesuffix("exec")
    if task == "delegate":
        spawn = next(name for name in tools if name.endswith("spawn_agent"))
        wait = next(name for name in tools if name.endswith("wait_agent"))
        return [
            (spawn, {"task_name": "errand", "message": _ERRAND, "fork_turns": "none"}),
            (wait, {"timeout_ms": 60_000}),
        ]
    if task in {"errand", "compact"}:
        return [(f"{prefix}exec", {"input": 'text((await tools.exec_command({cmd: "ls"})).output)'})]
    return [
        (f"{prefix}exec", {"input": f'text((await tools.exec_command({{cmd: "{_WRITE}"}})).output)'}),
        (f"{prefix}exec", {"input": f'text(await tools.apply_patch("{_PATCH}"))'}),
    ]


def _claude_steps(task: str, text: str) -> list[tuple[str, dict[str, Any]]]:
    if task == "delegate":
        return [("Agent", {"description": "Run the errand", "prompt": _ERRAND, "subagent_type": "general-purpose"})]
    if task == "errand":
        return [("Bash", {"command": "ls", "description": "List the files"})]
    folder = re.search(r"Primary working directory: (.+?)\\n", text)
    assert folder, "Claude Code did not say where it works"
    path = f"{folder[1]}/{FILE}"
    return [
        ("Bash", {"command": _WRITE, "description": "Write the greeting"}),
        ("Read", {"file_path": path}),
        ("Edit", {"file_path": path, "old_string": "hello", "new_string": CONTENT}),
    ]


def _fields(task: str, text: str) -> dict[str, Any] | None:
    """What the model says where a prompt asks for a text with fields, as DSPy's do."""
    _, asked, form = text.rpartition("Respond with the corresponding output fields")
    if not asked:
        return None
    missing = [order for order, result in zip(("K47", "K48"), RESULTS, strict=True) if result not in text]
    call = ("look_up", {"order_id": missing[0]}) if task == "tools" and missing else ("finish", {})
    values = {"next_tool_name": call[0], "next_tool_args": json.dumps(call[1])}
    fields = [f"[[ ## {name} ## ]]\n{values.get(name, ANSWER)}\n" for name in re.findall(r"\[\[ ## (\w+) ## ]]", form)]
    return _text("\n".join(fields))


def _looked_up(tools: Sequence[str], order: str) -> tuple[str, dict[str, Any]]:
    """The call that looks an order up; an agent whose only tool is a shell has it print the result."""
    if "bash" in tools:
        state = RESULTS[0 if order == "K47" else 1].partition("-")[2]
        return "bash", {"command": f"printf '%s-%s' {order} {state}"}
    return next(name for name in tools if "look_up" in name), {"order_id": order}


def _text(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "refusal": None, "annotations": []}


def _calls(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    made = [
        {
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for name, arguments in calls
    ]
    return {"role": "assistant", "content": None, "tool_calls": made, "refusal": None, "annotations": []}
