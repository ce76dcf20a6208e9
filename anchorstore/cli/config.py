"""`anchorstore config defaults|check|show`: the daemon's configuration, without a daemon."""

from __future__ import annotations

import argparse
import sys

from anchorstore.cli import settings
from anchorstore.cli.output import add_json_option, print_json
from anchorstore.config import SETTINGS, render
from anchorstore.config.schema import value_of
from anchorstore.errors import ConfigError

_DESCRIPTION = "Lists, checks or shows the configuration of `anchorstore serve`."


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `config` and its actions."""
    text = "list, check or show the daemon's configuration"
    parser = subparsers.add_parser("config", help=text, description=_DESCRIPTION)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    defaults = actions.add_parser("defaults", help="print a file with every key, explained")
    defaults.add_argument(
        "--markdown", action="store_true", help="print the reference page's tables instead"
    )
    check = actions.add_parser(
        "check",
        help="exit with 0 if these options fit together, else 2 and the reasons",
        description="Exits with 0 if these options are right, fit together, and name files that "
        "can be used here, else with 2 and the reasons.  What the host has free (memory, huge "
        "pages, ports) is checked by serve alone.",
    )
    show = actions.add_parser("show", help="print every value and where it comes from")
    settings.add_options(check)
    settings.add_options(show)
    add_json_option(show)


def run(args: argparse.Namespace) -> int:
    """Does one action."""
    if args.action == "defaults":
        text = render.reference_markdown() if args.markdown else render.defaults_toml()
        sys.stdout.write(text)
        return 0
    loaded = settings.loaded_from(args)
    if args.action == "show":
        if args.json:
            print_json(render.values_plain(loaded))
        else:
            sys.stdout.write(render.values_text(loaded))
        return 0
    found = settings.unusable_files(loaded.config)
    if found:
        title = f"configuration: {len(found)} of its files cannot be used"
        raise ConfigError("\n  ".join([title, *found]))
    changed = sum(value_of(loaded.config, item) != item.default for item in SETTINGS)
    print(f"ok: {len(loaded.sources)} keys, {changed} not at their default")
    return 0
