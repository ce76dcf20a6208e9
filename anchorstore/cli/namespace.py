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
        connection.add_options(action)
        add_json_option(action)


def run(args: argparse.Namespace) -> int:
    """Turns the switch."""
    with connection.connect(args) as daemon:
        space = names.resolve(names.namespaces(daemon), args.namespace)
        request = admin_pb2.SetNamespaceRequest(
            root_digest=space.root_digest, enabled=args.action == "enable"
        )
        answer = daemon.call(Method.SET_NAMESPACE, request, admin_pb2.SetNamespaceResponse)
    if args.json:
        shown = {"root_digest": space.root_digest.hex(), "enabled": request.enabled}
        print_json({**shown, "until_restart": answer.until_restart})
    else:
        lasts = " until the daemon starts again" if answer.until_restart else ""
        print(f"{args.action}d {digest(space.root_digest)} {space.domain}/{space.model}{lasts}")
    return 0
