"""Client and command line can be imported where Windows has no such module: no more than that is known of it."""

from __future__ import annotations

import json
import subprocess
import sys

IMPORTS = """
import builtins, importlib, json, pkgutil
import ratchet.bus, ratchet.cli, ratchet.client

usual, absent = builtins.__import__, {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}

def on_windows(name, globals=None, *rest):
    if name in absent and (globals or {}).get("__name__", "").startswith("ratchet"):
        raise ModuleNotFoundError(f"{globals['__name__']} imports {name}")
    return usual(name, globals, *rest)

builtins.__import__ = on_windows
failed = {}
for package in (ratchet.bus, ratchet.client, ratchet.cli):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name.endswith(".__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            failed[module.name] = str(error)
print(json.dumps(failed))
"""


def test_client_and_commands_import_without_modules_of_posix() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, timeout=120)
    failed = json.loads(done.stdout.splitlines()[-1])
    assert failed == {}
