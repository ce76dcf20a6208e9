"""What a daemon has been told by now, from its metrics: saving and events come behind an answer."""

from __future__ import annotations

import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from anchorstore.testing.daemon import Daemon

WAIT_SECONDS = 60.0


def told(daemon: Daemon) -> dict[str, int]:
    """Events by kind, and the daemon's numbers that have no label, `pages` among them."""
    with urllib.request.urlopen(f"{daemon.http_address}/metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
    samples = [sample for family in families for sample in family.samples]
    named = {s.labels["kind"]: s for s in samples if s.name == "anchorstore_engine_events_total"}
    named |= {s.name.removeprefix("anchorstore_"): s for s in samples if not s.labels}
    return {name: int(sample.value) for name, sample in named.items()}


def wait_for(daemon: Daemon, **least: int) -> dict[str, int]:
    """Until at least so much was told of each kind."""
    deadline = time.monotonic() + WAIT_SECONDS
    while any((found := told(daemon)).get(kind, 0) < count for kind, count in least.items()):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found
