"""Goal: the demo's closing lines claim no more than its figures show.
Method: the text of made-up figures, one for each thing that they can show.
"""

from __future__ import annotations

from typing import Any

import pytest

from anchorstore.cli.demo import holdings, verdict

QUIET = 1e-5  # a mean KL of nothing but noise


def figures(kl: float, kv_only: float, no_margin: float, zero: float) -> dict[str, Any]:
    """What a run with one request found; mean KLs."""
    request = {
        "mean_kl": kl,
        "kv_only_mean_kl": kv_only,
        "no_margin_mean_kl": no_margin,
        "zero_state_mean_kl": zero,
        "no_margin_top1_agreement": 1.0,
    }
    return {"resume_margin_tokens": 64, "requests": [request]}


@pytest.mark.parametrize(
    ("found", "claim"),
    [
        (figures(0.01, 0.5, 0.02, 3.0), "lower the mean KL from 0.5000 (kv only) to 0.0100."),
        (figures(QUIET, QUIET, QUIET, 3.0), "64 recomputed tokens are all that this model"),
        (figures(QUIET, QUIET, QUIET, QUIET), "this model shows no dependence on its state."),
    ],
    ids=["anchors", "margin", "stateless"],
)
def test_verdict_claims_what_the_figures_show(found: dict[str, Any], claim: str) -> None:
    closing = verdict(found).splitlines()[-1]
    assert claim in closing
    claims = ("lower the mean KL", "all that this model remembers", "no dependence on its state")
    assert sum(other in closing for other in claims) == 1


def test_holdings_say_who_stored_the_pages() -> None:
    kv = {"component": "kv", "blocks": 106, "used_bytes": 2**20, "capacity_bytes": 2**21}
    idle = {"component": "state", "blocks": 0, "used_bytes": 0, "capacity_bytes": 2**21}
    found = {
        "pages_sealed": 104,
        "requests": [{"pages_sealed": 0}, {"pages_sealed": 2}],
        "daemon": {"pages": 106, "tiers": [{"name": "dram", "components": [kv, idle]}]},
    }
    first, *parts = holdings(found).splitlines()
    assert first.startswith("The daemon holds 106 pages; engine A stored 104, engine B added 2 ")
    assert parts == ["  dram kv: 106 blocks, 1MiB of 2MiB"]
