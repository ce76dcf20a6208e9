"""Finds the command and runs it.

::

    argv[0] --> COMMANDS --> import that one module --> add_parser(subparsers) --> run(args) -> code

Only the chosen command is imported: `anchorstore --help` is quick, and commands of the base install
work where the daemon's or the engine's packages are missing.

Exit codes: 0 done, 1 a check failed, 2 wrong usage or configuration, 3 daemon unreachable, 4 the
output could not be written.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Protocol

from anchorstore import __version__
from anchorstore.cli.options import CommandParser
from anchorstore.errors import AnchorStoreError, DataError, Unavailable

DONE, FAILED, USAGE, UNREACHABLE, UNWRITTEN, INTERRUPTED = 0, 1, 2, 3, 4, 130
OUTPUT_ERRORS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF))
"""Of `anchorstore ls > /full/disk`, for example."""
_DESCRIPTION = "A shared, tiered store of anchors and KV pages for hybrid language models."
_EPILOG = """\
exit codes: 0 done, 1 a check failed, 2 wrong usage or configuration, 3 daemon unreachable,
4 the output could not be written
`anchorstore COMMAND --help` explains a command."""


class CommandModule(Protocol):
    """What a command's module has."""

    def add_parser(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Adds the command's parser under its own name."""

    def run(self, args: argparse.Namespace) -> int:
        """Does it; returns the exit code."""


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """A command, the module that has it, and the extra that its packages come with."""

    name: str
    module: str
    help: str
    extra: str = ""


COMMANDS = (
    Command("serve", "anchorstore.cli.serve", "run the daemon", "server"),
    Command("config", "anchorstore.cli.config", "list, check or show the daemon's configuration"),
    Command("status", "anchorstore.cli.status", "what a running daemon holds"),
    Command("top", "anchorstore.cli.top", "what a running daemon does, live"),
    Command("ls", "anchorstore.cli.ls", "list namespaces, or the pages of one"),
    Command(
        "check",
        "anchorstore.cli.check",
        "walk every invariant of a daemon, or of a device",
    ),
    Command(
        "explain", "anchorstore.cli.explain", "how far a prefix matches, and why it ends there"
    ),
    Command("namespace", "anchorstore.cli.namespace", "turn a namespace off and on, live"),
    Command("remove", "anchorstore.cli.remove", "remove a namespace's blocks, or a subtree's"),
    Command("size", "anchorstore.cli.size", "what a model's anchors and kv take"),
    Command(
        "demo",
        "anchorstore.cli.demo",
        "two engines share prefixes, measured",
        "server,transformers",
    ),
)


def make_parser(chosen: str | None) -> tuple[argparse.ArgumentParser, CommandModule | None]:
    """The parser, with the options of the chosen command alone, and that command's module."""
    parser = CommandParser(
        prog="anchorstore",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"anchorstore {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    module: CommandModule | None = None
    for command in COMMANDS:
        if command.name == chosen:
            module = importlib.import_module(command.module)
            module.add_parser(subparsers)
        else:
            subparsers.add_parser(command.name, help=command.help)
    return parser, module


def exit_code(error: AnchorStoreError) -> int:
    """What the shell is told about an error."""
    if isinstance(error, Unavailable):
        return UNREACHABLE
    return FAILED if isinstance(error, DataError) else USAGE


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; the exit code.  argparse itself leaves with 2 for wrong options."""
    if sys.stdout is None:  # closed by whoever started us: nobody reads
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lasts
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = arguments[0] if arguments else None
    command = next((item for item in COMMANDS if item.name == chosen), None)
    prefix = f"anchorstore {chosen}" if command else "anchorstore"
    try:
        parser, module = make_parser(chosen)
        args = parser.parse_args(arguments)
        assert module is not None, "parse_args lets only known commands pass"
        code = module.run(args)
        sys.stdout.flush()
        return code
    except ModuleNotFoundError as error:
        if command is None or not command.extra or _is_ours(error.name):
            raise
        install = f"pip install 'anchorstore[{command.extra}]'"
        package = (error.name or "").partition(".")[0]
        print(f"{prefix}: needs the package {package}: {install}", file=sys.stderr)
        return USAGE
    except AnchorStoreError as error:
        print(f"{prefix}: {error}", file=sys.stderr)
        return exit_code(error)
    except BrokenPipeError:  # `anchorstore ls | head`: the reader has had enough
        _drop_output()
        return DONE
    except OSError as error:
        if error.errno not in OUTPUT_ERRORS:
            raise
        print(f"{prefix}: {error}", file=sys.stderr)
        _drop_output()
        return UNWRITTEN
    except KeyboardInterrupt:
        return INTERRUPTED


def _drop_output() -> None:
    """What is left to be written goes nowhere: Python would try again, and fail, at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_ours(name: str | None) -> bool:
    return (name or "").partition(".")[0] in ("anchorstore", "engine_adapter", "")
