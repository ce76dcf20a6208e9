#!/usr/bin/env bash
# Puts fio, the yardstick of benchmarks/nvme, on this machine where that is possible without asking.
set -euo pipefail

command -v fio >/dev/null || "$(dirname "$0")/ensure_package.sh" fio fio "the ratios to fio"
