"""Pure decisions: no I/O, no clock, no randomness, no asyncio.  `Store` is the way in.

Reading order::

    store_config.py    limits and sizes
    types.py work.py   values in, values out; work between the tiers
    columns.py         growable numpy columns with row allocation
    index.py           (namespace, path hash) -> page row: open addressing, vectorised
    page_columns.py    columns that only some policies read
    blocks.py          page row -> its sealed blocks: chains in columns
    ../../tiers/slab   one segment's slots
    pool.py cold_pool.py    segments: who holds which, what may be re-formatted
    sessions.py        sessions, namespaces, block kinds
    leases.py          timed rights to read
    policies.py admission.py leaf_order.py    the order of pages, exact among leaves
    policy.py          which page of a tier goes next
    tier.py            what is asked of a tier: dram, nvme
    boundary.py        the largest boundary that satisfies all needs
    use_times.py       how long ago a page was used
    moving.py story.py state.py    all of the above in one place, and how pages come and go
    evicting.py balancing.py               making room, in either tier
    requests.py                            checks of what comes in
    planning.py lookup.py reserving.py sealing.py     the three verbs
    demoting.py promoting.py restoring.py  from dram to nvme, back, and over a restart
    devices.py                             a device that fails
    reports.py check.py                    what operators see, what must always hold
    store.py           the API

Beside it: runs.py, where the order must equal an engine's own; tuning.py, how flop-aware is tuned;
mirror.py, the copies in hbm.
"""
