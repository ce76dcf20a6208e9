"""Who is whom: from a Unix peer's user id or a bearer token to a domain.

The domain is the wall that nothing crosses; it comes from here alone, never from a message.  On
the Unix socket the kernel vouches for the user id; a token, where one is sent, must be valid and
then decides.  Tokens are compared in constant time, all of them, whichever matches.
"""

from __future__ import annotations

import dataclasses
import hmac
import os
import pathlib
from collections.abc import Collection, Mapping, Sequence

from anchorstore.errors import ConfigError, Unauthenticated

ADMIN_DOMAIN = "@admin"
TOKEN_BYTES_MIN = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """What a connection may touch.

    Attributes:
        domain: the tenant.
        is_admin: whether it may see and change other tenants' namespaces.
    """

    domain: str
    is_admin: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """One bearer token and the domain it stands for."""

    domain: str
    secret: bytes = dataclasses.field(repr=False)


def _lines(path: pathlib.Path, key: str) -> list[tuple[int, str]]:
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key}: {path} is not text: {error}") from error
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    found = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if not found:  # without tokens everybody would be let in
        raise ConfigError(f"{key}: no token in {path}")
    return found


def _token(domain: str, secret: str, where: str) -> Token:
    if len(secret) < TOKEN_BYTES_MIN:
        raise ConfigError(f"{where}: token of {len(secret)} bytes, need {TOKEN_BYTES_MIN}")
    return Token(domain, secret.encode())


def read_tokens(path: pathlib.Path) -> list[Token]:
    """Tokens of a file with "domain token" lines; "@admin" is the operators' domain."""
    tokens = []
    for number, line in _lines(path, "auth.token_file"):
        words = line.split()
        if len(words) != 2:
            raise ConfigError(f'{path}:{number}: {len(words)} words, must be "domain token"')
        tokens.append(_token(words[0], words[1], f"{path}:{number}"))
        if tokens[-1].secret in {token.secret for token in tokens[:-1]}:
            raise ConfigError(f"{path}:{number}: the token stands above already")
    return tokens


def read_admin_tokens(path: pathlib.Path) -> list[Token]:
    """Tokens of a file with one operator's token a line."""
    tokens = []
    for number, line in _lines(path, "auth.admin_token_file"):
        if len(line.split()) != 1:
            raise ConfigError(f"{path}:{number}: must be one token")
        tokens.append(_token(ADMIN_DOMAIN, line, f"{path}:{number}"))
    return tokens


class Authenticator:
    """Decides identities.

    Args:
        uids: domain by user id, for the Unix socket.
        default_domain: of users not named there, and of remote peers where no token exists at
            all; None refuses them.
        tokens: of remote engines and operators.
        admin_uids: users with operators' rights beside root and the daemon's own user.
    """

    def __init__(
        self,
        uids: Mapping[int, str],
        default_domain: str | None,
        tokens: Sequence[Token] = (),
        admin_uids: Collection[int] = (),
    ) -> None:
        self._uids, self._default_domain = dict(uids), default_domain
        self._tokens = list(tokens)
        self._admin_uids = {0, os.getuid(), *admin_uids}

    def of_user(self, uid: int) -> Identity:
        """Identity of a local user."""
        domain = self._uids.get(uid, self._default_domain)
        if domain is None:
            raise Unauthenticated(f"user id {uid} has no domain (auth.uids)")
        return Identity(domain, uid in self._admin_uids)

    def of_token(self, secret: str) -> Identity:
        """Identity of a bearer token; without any token configured, the default domain."""
        if not self._tokens and not secret:
            if self._default_domain is None:
                raise Unauthenticated("no token is configured and unknown users are refused")
            return Identity(self._default_domain)
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.secret, secret.encode()):
                found = token
        if found is None:
            raise Unauthenticated("token is not valid" if secret else "no token was given")
        return Identity(found.domain, found.domain == ADMIN_DOMAIN)
