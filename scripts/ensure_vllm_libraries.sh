#!/usr/bin/env bash
# Puts the library that vLLM's kernels for CPU are linked with on this machine, where that is
# possible without asking; the lane is skipped with a reason where it is not.
set -euo pipefail

if PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep 'libnuma\.so\.1' >/dev/null; then
  exit 0
fi
"$(dirname "$0")/ensure_package.sh" libnuma1 libnuma "the tests in a real vLLM"
