"""`python -m benchmarks.engine`."""

from __future__ import annotations

from benchmarks.engine.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
