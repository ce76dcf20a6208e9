"""python -m benchmarks.nvme"""

from __future__ import annotations

from benchmarks.nvme.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
