"""`anchorstore serve`: the daemon, in the foreground."""

from __future__ import annotations

import argparse

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
        raise ConfigError("serve: python -O leaves out the asserts, which guard the store's bytes")
    config = settings.loaded_from(args).config
    from anchorstore.server import daemon  # after the configuration: a wrong one is told at once

    return daemon.serve(config)
