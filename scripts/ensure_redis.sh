#!/usr/bin/env bash
# Puts redis-server on this machine where that is possible without asking; tests that want it skip
# with a reason where it is not.
set -euo pipefail

if command -v redis-server >/dev/null; then
  exit 0
fi
"$(dirname "$0")/ensure_package.sh" redis-server redis-server "what needs Redis"
# The package starts a server of its own; tests start theirs.
service redis-server stop >/dev/null 2>&1 || true
