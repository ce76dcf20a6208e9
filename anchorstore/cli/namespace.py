"""`anchorstore namespace enable|disable`: a namespace's kill switch, live."""

from __future__ import annotations

import argparse

from anchorstore.cli import connection, names
from anchorstore.cli.output import add_json_option, digest, print_json
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import admin_pb2

_ACTIONS = {
    "disable": "lookups miss and reserves are declined from now on; blocks stay",
    "enable": "lookups and reserves work again",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `namespace` and its actions."""
    parser = subparsers.add_parser(
        "namespace",
        help="turn a namespace off and on, live",
        description="Turns a namespace of a running daemon off and on.  Engines go on with "
        "ordinary prefills while it is off.  An nvme tier remembers it; without one, a restart "
        "of the daemon turns it on.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, text in _ACTIONS.items():
        action = actions.add_parser(name, help=text, description=text)
        names.add_argument(action)
        action.add_argument(
            "--all",
            action="store_true",
            help="every namespace that fits: a model with all its salts, adapters and weights",
        )
        connection.add_options(action)
        add_json_option(action)


def run(args: argparse.Namespace) -> int:
    """Turns the switch."""
    turned = []
    with connection.connect(args) as daemon:
        spaces = names.namespaces(daemon)
        if args.all:
            wanted = names.resolve_all(spaces, args.namespace)
        else:
            wanted = [names.resolve(spaces, args.namespace)]
        for space in wanted:
            request = admin_pb2.SetNamespaceRequest(
                root_digest=space.root_digest, enabled=args.action == "enable"
            )
            answer = daemon.call(Method.SET_NAMESPACE, request, admin_pb2.SetNamespaceResponse)
            shown = {"root_digest": space.root_digest.hex(), "enabled": request.enabled}
            turned.append({**shown, "until_restart": answer.until_restart})
            if not args.json:
                lasts = " until the daemon starts again" if answer.until_restart else ""
                name = f"{digest(space.root_digest)} {space.domain}/{space.model}"
                print(f"{args.action}d {name}{lasts}")
    if args.json:
        print_json({"namespaces": turned} if args.all else turned[0])
    return 0
