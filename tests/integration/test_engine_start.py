"""How the engine starts without torch or with a taken port, and that the gateway imports no torch."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

RUN = "import runpy; runpy.run_module('ratchet.local.engine_local', run_name='__main__')"
WITHOUT_TORCH = f"import sys; sys.modules['torch'] = None; {RUN}"
WITH_A_TAKEN_PORT = f"""
import os, socket
taken = socket.socket()
taken.bind(("127.0.0.1", 0))
taken.listen()
os.environ["RATCHET_ENGINE_PORT"] = str(taken.getsockname()[1])
{RUN}
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "RATCHET_HEALTH_PORT": "0", "RATCHET_ENGINE_PORT": "0"}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_missing_extra_is_named() -> None:
    ended = python(WITHOUT_TORCH)
    assert ended.returncode == 1
    assert "pip install 'ratchet-rl[engine]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_taken_port_is_a_clear_error() -> None:
    ended = python(WITH_A_TAKEN_PORT)
    assert ended.returncode == 1
    assert "cannot listen on 127.0.0.1:" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_gateway_needs_no_torch() -> None:
    ended = python("import sys, ratchet.gateway.app; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)")
    assert (ended.returncode, ended.stderr) == (0, "")
