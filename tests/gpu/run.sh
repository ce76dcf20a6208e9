#!/bin/sh
# Everything that needs a CUDA device, in under 5 minutes; prints one JSON object.
#
#   tests/gpu/run.sh > gpu.json            the exit code says whether all is well
#   PYTHON=/path/to/python tests/gpu/run.sh
#
# The checkout is tested, not a wheel.  Python 3.11 or newer with numpy, xxhash, pytest and
# hypothesis is enough; torch is used where it is installed.
set -eu
cd "$(dirname "$0")/../.."
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH PYTHONDONTWRITEBYTECODE=1
exec timeout 295 "${PYTHON:-python3}" -m tests.gpu.report
