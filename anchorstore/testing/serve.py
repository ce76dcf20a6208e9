"""`anchorstore serve` on a device that is a folder: for tests of real processes without a GPU.

    python -m anchorstore.testing.serve --fake-cuda FOLDER [options of `anchorstore serve`]

Nothing else differs from the product's command, and nothing in the product leads here.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys

from anchorstore.cli import settings
from anchorstore.server import daemon
from anchorstore.server.logs import make_logger
from anchorstore.testing.fake_cuda import FakePlatform
from anchorstore.testing.shared_cuda import SharedFakeGpu


def main() -> int:
    """Serves until a signal."""
    parser = argparse.ArgumentParser(description="the daemon on a fake CUDA device")
    settings.add_options(parser)
    parser.add_argument("--fake-cuda", metavar="FOLDER", type=pathlib.Path, required=True)
    args = parser.parse_args()
    config = settings.loaded_from(args).config
    log = make_logger(config.log, config.node.name or os.uname().nodename, sys.stderr)
    log.warning("the hbm tier lies on a fake device", folder=str(args.fake_cuda))
    gpu = SharedFakeGpu(args.fake_cuda)
    return daemon.serve(config, log, lambda: FakePlatform(gpu))


if __name__ == "__main__":
    raise SystemExit(main())
