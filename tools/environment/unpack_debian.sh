#!/usr/bin/env bash
# Unpacks a Debian package into a folder: without what it depends on, or with what of that this system lacks.
# Run by `make prometheus` and `make chromium`.
#
#   unpack_debian.sh PACKAGE FOLDER [--with-dependencies]
set -euo pipefail

package="$1" target="$2" dependencies="${3:-}"

if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "$package: this is no Debian or Ubuntu, where its package comes from" >&2
    exit 1
fi
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
packages() {
    if test -z "$dependencies"; then
        echo "$package"
    else
        apt-get -s install --no-install-recommends "$package" | awk '/^Inst /{print $2}'
    fi
}
fetch() {
    local names
    names="$(packages)" && test -n "$names" || return 1
    # As root, apt would download as a user of its own, who cannot write here.
    # shellcheck disable=SC2086
    timeout 300 apt-get -qq -o APT::Sandbox::User=root download $names
}
fetch 2>/dev/null || { timeout 120 apt-get -qq update && fetch; }
cd - >/dev/null
mkdir -p "$target"
for file in "$folder"/*.deb; do dpkg-deb -x "$file" "$target"; done
