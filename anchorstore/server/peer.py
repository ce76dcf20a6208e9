"""The other end of a connection, as every carrier hands it to the service."""

from __future__ import annotations

import dataclasses
import enum

from anchorstore.errors import Forbidden
from anchorstore.server.auth import Authenticator, Identity
from anchorstore.server.limits import Place


class Carrier(enum.Enum):
    """How a call came; decides what may come with it."""

    UNIX = "unix"
    TCP = "tcp"
    GRPC = "grpc"


@dataclasses.dataclass(slots=True, eq=False)
class Peer:
    """One connection; on gRPC, one call.

    Attributes:
        carrier: how it came.
        name: for logs, e.g. "unix:1234" (process) or "10.0.0.7:51234".
        identity: None until a remote peer has shown its token.
        sessions: ids of the sessions that this connection attached or joined.
        place: in the budget of connections; None where the call is no connection.
    """

    carrier: Carrier
    name: str
    identity: Identity | None = None
    sessions: set[bytes] = dataclasses.field(default_factory=set)
    place: Place | None = None

    def authenticate(self, auth: Authenticator, token: str) -> Identity:
        """The peer's identity, from `token` where one is given; Unauthenticated, Forbidden.

        A connection belongs to one domain for good; showing an operator's token later raises it
        for that call alone.
        """
        if not token and self.identity is not None:
            return self.identity
        found = auth.of_token(token)
        if self.identity is None:
            self.become(found)
        elif found.domain != self.identity.domain and not found.is_admin:
            if self.sessions:
                raise Forbidden(
                    f"connection belongs to domain {self.identity.domain!r}, its token to another"
                )
            self.become(found)
        return found

    def become(self, identity: Identity) -> None:
        """Belongs to a domain from now on; CapacityFull where that has its share of connections.
        Operators are nobody's share: they must get in when a tenant has used up his."""
        if self.place is not None and not identity.is_admin:
            self.place.claim(identity.domain)
        self.identity = identity
