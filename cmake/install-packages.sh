#!/bin/sh
# Installs the Debian packages of debian-packages.txt that are missing: install-packages.sh build [test] [slow]
# Says what it does on stderr and writes nothing to stdout. Without the right to install it prints the line to run.
set -eu
list=$(dirname "$0")/debian-packages.txt
command -v dpkg-query >/dev/null 2>&1 || exit 0  # not a Debian: the build says what it does not find

missing=
for kind in "$@"; do
    for package in $(sed -n "s/^$kind //p" "$list"); do
        state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || state=none
        [ "$state" = installed ] || missing="$missing $package"
    done
done
[ -n "$missing" ] || exit 0

line="apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" != 0 ]; then
    echo "dgemma needs Debian packages that are not installed. As root, run:" >&2
    echo "  apt-get update && $line" >&2
    exit 1
fi
echo "dgemma: installing Debian packages:$missing" >&2
export DEBIAN_FRONTEND=noninteractive
{ apt-get -qq update && $line -qq; } </dev/null >&2 || {
    echo "dgemma: apt-get could not install them; the lines above say why." >&2
    exit 1
}
