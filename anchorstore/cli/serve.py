"""`anchorstore serve`: the daemon, in the foreground."""

from __future__ import annotations

import argparse
import os
import sys

from anchorstore.cli import settings
from anchorstore.errors import ConfigError

_EPILOG = """\
Order of settings: default, --config FILE, environment ANCHORSTORE__SECTION__KEY, options.
`anchorstore config defaults` prints every key.  SIGTERM and SIGINT drain (node.drain); a second one
ends at once.  readyz says ready once the pool is prefaulted.  Logs go to standard error."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `serve`."""
    parser = subparsers.add_parser(
        "serve",
        help="run the daemon",
        description="Runs the daemon in the foreground.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    settings.add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Serves until a signal; 0 after a drain, 2 where it cannot start."""
    if not __debug__:
        raise ConfigError("python -O leaves out the asserts, which guard the store's bytes")
    config = settings.loaded_from(args).config
    # After the configuration, so that a wrong one is told at once.
    from anchorstore.server import daemon
    from anchorstore.server.logs import forward_libraries, make_logger

    log = make_logger(config.log, config.node.name or os.uname().nodename, sys.stderr)
    forward_libraries(log)
    return daemon.serve(config, log)
