#!/usr/bin/env bash
# Puts the library that vLLM's kernels for CPU are linked with on this machine, where that is
# possible without asking; the lane is skipped with a reason where it is not.
set -euo pipefail

if PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep 'libnuma\.so\.1' >/dev/null; then
  exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "== libnuma is absent and cannot be installed here (needs root and apt-get):"
  echo "   the tests in a real vLLM will be SKIPPED"
  exit 0
fi
echo "== installing libnuma1"
log=$(mktemp)
install() { DEBIAN_FRONTEND=noninteractive apt-get install -y -q libnuma1 >"$log" 2>&1; }
if ! install && ! { apt-get update -q >"$log" 2>&1 && install; }; then
  tail -n 5 "$log"
  echo "== libnuma1 could not be installed: the tests in a real vLLM will be SKIPPED"
fi
rm -f "$log"
