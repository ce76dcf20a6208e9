"""python -m benchmarks.trace"""

from __future__ import annotations

from benchmarks.trace.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
