#!/usr/bin/env bash
# Puts redis-server on this machine where that is possible without asking; tests that want it skip
# with a reason where it is not.
set -euo pipefail

if command -v redis-server >/dev/null; then
  exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "== redis-server is absent and cannot be installed here (needs root and apt-get):"
  echo "   what needs Redis will be SKIPPED"
  exit 0
fi
echo "== installing redis-server"
log=$(mktemp)
install() { DEBIAN_FRONTEND=noninteractive apt-get install -y -q redis-server >"$log" 2>&1; }
if ! install && ! { apt-get update -q >"$log" 2>&1 && install; }; then
  tail -n 5 "$log"
  echo "== redis-server could not be installed: what needs Redis will be SKIPPED"
fi
rm -f "$log"
# The package starts a server of its own; tests start theirs.
service redis-server stop >/dev/null 2>&1 || true
