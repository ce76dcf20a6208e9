"""The core's counters, and the metric and labels under which each is shown.

A counter of the core is a plain name in a dict; here it becomes a sample of a metric, so that a
dashboard can add up "lookups by outcome".  A counter that is missing here still shows, under
anchorstore_core_events_total.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class CounterSpec:
    """A metric and its samples: values of the labels by the core's name."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    samples: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


COUNTERS: tuple[CounterSpec, ...] = ()
OTHER_COUNTERS = CounterSpec("core_events", "Counters of the core without a metric.", ("event",))
