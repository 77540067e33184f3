#!/usr/bin/env bash
# Unpacks a Debian package, without what it depends on, into a folder. Run by `make prometheus`.
set -euo pipefail

package="$1" target="$2"

if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "$package: this is no Debian or Ubuntu, where its package comes from" >&2
    exit 1
fi
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
fetch() {
    # As root, apt would download as a user of its own, who cannot write here.
    timeout 120 apt-get -qq -o APT::Sandbox::User=root download "$package"
}
fetch 2>/dev/null || { timeout 120 apt-get -qq update && fetch; }
cd - >/dev/null
mkdir -p "$target"
dpkg-deb -x "$folder"/*.deb "$target"
