#!/usr/bin/env bash
# Builds the wheel from this checkout and installs it into an environment, .venv by default.
#
#   install_wheel.sh EXTRAS [VENV]
#
# The extras' requirements are installed when pyproject.toml changed since the last time, the wheel
# itself always.  A .pth file puts the checkout at the END of sys.path: `import benchmarks` finds
# the checkout, `import anchorstore` still finds the installed wheel.
set -euo pipefail
cd "$(dirname "$0")/.."

extras=$1
venv=${2:-.venv}
dist=dist
if [ "$venv" != .venv ]; then dist=$venv/dist; fi
pip=("$venv/bin/python" -m pip --disable-pip-version-check)

rm -rf "$dist"
echo "== building the wheel"
"${pip[@]}" wheel -q --no-deps --no-build-isolation --wheel-dir "$dist" .
wheel=$(echo "$dist"/anchorstore-*.whl)

if ! cmp -s pyproject.toml "$venv/.pyproject"; then
  echo "== installing $wheel[$extras]"
  "${pip[@]}" install -q "$wheel[$extras]"
  cp pyproject.toml "$venv/.pyproject"
fi
echo "== installing $wheel"
"${pip[@]}" install -q --force-reinstall --no-deps "$wheel"

site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
pwd > "$site/zz_anchorstore_checkout.pth"
