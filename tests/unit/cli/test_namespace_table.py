"""Goal: the table of namespaces has a column for what tells one from another, and no other.
Method: answers made by hand, the text that is printed of them.
"""

from __future__ import annotations

import pytest

from anchorstore.cli.names import resolve
from anchorstore.cli.namespace_table import namespaces_text
from anchorstore.errors import UsageError
from anchorstore.wire.v1.admin_pb2 import NamespaceStatus


def test_reserved_shares_stand_beside_quotas() -> None:
    spaces = [
        NamespaceStatus(model="a", share_bytes=2**30, nvme_share_bytes=2**40),
        NamespaceStatus(model="b"),
    ]
    head, first, second = namespaces_text(spaces).splitlines()
    assert head.split()[-5:-3] == ["NVME", "RESERVED"] and "QUOTA  RESERVED" in head
    assert "1GiB" in first and "1TiB" in first and second.split().count("none") == 3


@pytest.mark.parametrize(
    "spaces", [[], [NamespaceStatus(model="m", weights_digest=bytes(range(32)), page_tokens=32)]]
)
def test_columns_that_say_nothing_of_any_namespace_are_left_out(
    spaces: list[NamespaceStatus],
) -> None:
    head = namespaces_text(spaces).splitlines()[0]
    assert ("WEIGHTS" in head, "PAGE TOKENS" in head) == (bool(spaces), bool(spaces))
    assert "ADAPTER" not in head and "SALT" not in head and "NVME" not in head
    assert head.startswith("NAMESPACE") and head.endswith("STATE")


def test_names_that_tenants_chose_reach_no_terminal_raw() -> None:
    forged = "x\x1b[2J\nNAMESPACE fake"
    spaces = [
        NamespaceStatus(model=forged, adapter="a" * 1000),
        NamespaceStatus(model="plain", domain="team-\u00e4"),
    ]
    head, first, second = namespaces_text(spaces).splitlines()
    assert r"x\x1b[2J\nNAMESPACE fake" in first and "a" * 40 + "..." not in head
    assert len(first) < 400 and "aaa..." in first
    assert second.split()[0] in ("team-\u00e4", r"team-\xe4")


def test_name_that_fits_several_is_refused_with_what_tells_them_apart() -> None:
    model = "x\x1b[2J"
    spaces = [
        NamespaceStatus(root_digest=bytes([at]) * 32, model=model, page_tokens=64, salted=bool(at))
        for at in range(2)
    ]
    with pytest.raises(UsageError) as refusal:
        resolve(spaces, model)
    _, head, first, second = str(refusal.value).splitlines()
    assert "PAGE TOKENS" in head and "SALT" in head and "STATE" not in head
    assert (first.split()[-1], second.split()[-1]) == ("no", "yes")
    assert r"x\x1b[2J" in first
