"""The core's counters, and the metric and labels under which each is shown.

A counter of the core is a plain name in a dict; here it becomes a sample of a metric, so that a
dashboard can add up lookups by outcome.  A counter that has no place here still shows, under
anchorstore_core_events_total, so nothing that is counted is ever lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class CounterSpec:
    """A metric and its samples: values of the labels by the core's name."""

    name: str
    text: str
    labels: tuple[str, ...]
    samples: Mapping[str, tuple[str, ...]]


def _by_suffix(prefix: str, *suffixes: str) -> dict[str, tuple[str, ...]]:
    """Samples of one label whose value is the end of the core's name."""
    return {f"{prefix}_{suffix}": (suffix,) for suffix in suffixes}


TIERS = ("dram", "nvme")
EVICTION_REASONS = ("room", "watermark", "quota")
EVICTION_AGES = ("1", "10", "60", "600", "3600", "21600", "86400", "inf")
"""Seconds since the last use, at most; those of anchorstore.server.core.use_times."""

COUNTERS = (
    CounterSpec(
        "lookups",
        "Lookups answered, by outcome: hit, or why there was none.",
        ("outcome",),
        _by_suffix(
            *("lookups", "hit", "not_stored", "incomplete", "lineage", "margin", "disabled", "cold")
        ),
    ),
    CounterSpec(
        "lookup_hit_pages",
        "Pages up to the resume points of all hits.",
        (),
        {"pages_hit": ()},
    ),
    CounterSpec(
        "blocks_offered",
        "Blocks asked about in reserves.",
        (),
        {"blocks_offered": ()},
    ),
    CounterSpec(
        "blocks_offered_known",
        "Blocks asked about that the store had already, as exact or more so.",
        (),
        {"blocks_offered_known": ()},
    ),
    CounterSpec(
        "blocks_written",
        "Blocks copied by seals, by outcome: sealed, known (another writer was first), mismatch "
        "(not the bytes that the writer meant).",
        ("outcome",),
        _by_suffix("blocks", "sealed", "known", "mismatch"),
    ),
    CounterSpec(
        "blocks_replaced",
        "Sealed blocks that took the place of an approximate one.",
        (),
        {"blocks_replaced": ()},
    ),
    CounterSpec(
        "blocks_declined",
        "Blocks declined, by reason.",
        ("reason",),
        _by_suffix("blocks_declined", "quota", "lineage", "disabled", "capacity", "limit"),
    ),
    CounterSpec(
        "blocks_gone",
        "Blocks that left the store, by reason: evicted with their page, thinned (blocks of inner "
        "pages that no window needs), or removed by request.",
        ("reason",),
        _by_suffix("blocks", "evicted", "thinned", "removed"),
    ),
    CounterSpec("pages_evicted", "Pages evicted.", (), {"pages_evicted": ()}),
    CounterSpec(
        "pages_demoted",
        "Pages that left memory with nothing lost: nvme holds their blocks.",
        (),
        {"pages_demoted": ()},
    ),
    CounterSpec(
        "pages_left",
        "Pages that a tier gave up for others, by what the room was for: a writer (room), the "
        "watermark, a namespace's quota.",
        ("tier", "reason"),
        {
            f"pages_left_{tier}_for_{reason}": (tier, reason)
            for tier in TIERS
            for reason in EVICTION_REASONS
        },
    ),
    CounterSpec(
        "pages_left_by_age",
        "The same pages, by seconds since their last use, or since the restart that found them: "
        "within `age`, and beyond the one below.",
        ("tier", "age"),
        {f"pages_left_{tier}_age_{age}": (tier, age) for tier in TIERS for age in EVICTION_AGES},
    ),
    CounterSpec(
        "nvme_blocks",
        "Blocks on their way to and from nvme, by event: written, write_failed, refused (nvme had "
        "no room), passed_over (too many waited), promoted (read, proven, in memory again), joined "
        "(wanted while they were being read already), corrupt (not what was written: forgotten), "
        "read_late (not read in time: they stay).",
        ("event",),
        {
            "nvme_blocks_written": ("written",),
            "nvme_blocks_write_failed": ("write_failed",),
            "nvme_blocks_refused": ("refused",),
            "nvme_blocks_passed_over": ("passed_over",),
            "blocks_promoted": ("promoted",),
            "blocks_joined": ("joined",),
            "blocks_corrupt": ("corrupt",),
            "nvme_blocks_read_late": ("read_late",),
        },
    ),
    CounterSpec(
        "nvme_blocks_gone",
        "Blocks that left nvme, by reason: evicted with their page, thinned, undoubled (memory "
        "holds them still), or lost (their device is gone, and memory did not hold them).",
        ("reason",),
        {
            "blocks_evicted_nvme": ("evicted",),
            "blocks_thinned_nvme": ("thinned",),
            "blocks_undoubled": ("undoubled",),
            "nvme_blocks_lost": ("lost",),
        },
    ),
    CounterSpec(
        "hbm_copies",
        "Copies of blocks on CUDA devices, by event: made, found (by lookups), failed, evicted "
        "(for others), dropped (their block has left memory), lost (with the device).",
        ("event",),
        _by_suffix("copies", "made", "found", "failed", "evicted", "dropped", "lost"),
    ),
    CounterSpec(
        "promotions",
        "Lookups whose blocks had to come from nvme, by outcome: begun, or refused (memory had no "
        "room for them).",
        ("outcome",),
        {"lookups_promoting": ("begun",), "promotions_refused": ("refused",)},
    ),
    CounterSpec(
        "hints_lost",
        "Hints that made way for others: their blocks are found by a call.",
        (),
        {"hints_lost": ()},
    ),
    CounterSpec(
        "pages_touched",
        "Pages that clients read by way of the hints, without a lookup.",
        (),
        {"pages_touched": ()},
    ),
    CounterSpec(
        "engine_events",
        "What engines told of pages in their own caches, by kind; unknown: pages that are not "
        "here; dropped: events that an engine could not send.",
        ("kind",),
        _by_suffix(
            *("events", "stored", "removed", "touched", "pinned", "unpinned", "unknown", "dropped")
        ),
    ),
    CounterSpec(
        "pages_let_go",
        "Pages that some engine held and none holds any more: written to nvme soon, and then the "
        "first to leave memory.",
        (),
        {"pages_let_go": ()},
    ),
    CounterSpec("pins_refused", "Pins of engines beyond a limit.", (), {"pins_refused": ()}),
    CounterSpec(
        "engines_lost",
        "Engines that told of their caches, by what became of it: expired (silent for "
        "lease.engine_ttl), not_followed (too many in one namespace: their uses and pins count, "
        "what they hold does not).",
        ("reason",),
        _by_suffix("engines", "expired", "not_followed"),
    ),
    CounterSpec(
        "segments_reformatted",
        "Segments emptied to hold blocks of another size or domain.",
        (),
        {"segments_reformatted": ()},
    ),
    CounterSpec(
        "sessions_events",
        "Sessions opened, ended in any way, and expired without a connection.",
        ("outcome",),
        _by_suffix("sessions", "opened", "ended", "expired"),
    ),
    CounterSpec(
        "leases_expired",
        "Read leases that ran out: their reader was too slow, or gone.",
        (),
        {"leases_expired": ()},
    ),
    CounterSpec(
        "reservations_lost",
        "Reservations that were never sealed, by reason: aborted by their writer, or expired.",
        ("reason",),
        _by_suffix("reservations", "aborted", "expired"),
    ),
)

LINEAGE_PREFIX = "hits_lineage_"
HITS_BY_LINEAGE = CounterSpec(
    "lookup_hits_by_lineage",
    "Hits by the deepest lineage among their blocks: 0 = exact.",
    ("lineage",),
    {},
)
OTHER_COUNTERS = CounterSpec(
    "core_events", "Counters of the core that have no metric of their own.", ("event",), {}
)

GAUGES_AMONG_COUNTERS: Mapping[str, str] = {
    "staging_used_bytes": "Staging memory granted to sessions.",
    "hint_bytes": "Memory of the hints, by which clients of this host find blocks without a call.",
    "reserved_pages": "Pages in open reservations.",
    "blocks_to_demote": "Sealed blocks that wait to be written to nvme.",
    "demotes_in_flight": "Batches being written to nvme.",
    "promotes_in_flight": "Batches being read from nvme.",
    "lookups_waiting": "Lookups that wait for blocks from nvme.",
    "nvme_reads_waiting": "Blocks whose namespaces wait for their turn at a device.",
    "engines": "Engines that tell of their own caches.",
    "pinned_pages": "Pages that engines keep in memory.",
    "pinned_bytes": "Memory of those.",
    "leased_blocks": "Blocks under read leases, counted once a need that names them.",
}
"""Values in a status's counters that rise and fall."""
