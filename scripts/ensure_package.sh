#!/usr/bin/env bash
# Installs a Debian package where that is possible without asking; says what is skipped where it is
# not:  ensure_package.sh PACKAGE NAME SKIPPED
set -euo pipefail

package=$1 name=$2 skipped=$3
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "== $name is absent and cannot be installed here (needs root and apt-get):"
  echo "   $skipped will be SKIPPED"
  exit 0
fi
echo "== installing $package"
log=$(mktemp)
install() { DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$package" >"$log" 2>&1; }
if ! install && ! { apt-get update -q >"$log" 2>&1 && install; }; then
  tail -n 5 "$log"
  echo "== $package could not be installed: $skipped will be SKIPPED"
fi
rm -f "$log"
