"""Pure decisions: no I/O, no clock, no randomness, no asyncio.  `Store` is the way in.

Reading order::

    types.py          values in, values out
    columns.py        growable numpy columns with row allocation
    index.py          (namespace, path hash) -> page row: open addressing, vectorised
    blocks.py         page row -> its sealed blocks: chains in columns
    ../../tiers/slab  one segment's slots
    pool.py           segments: who holds which, what may be re-formatted
    sessions.py       sessions, namespaces, block kinds
    leases.py         timed rights to read
    policy.py         which page goes next
    boundary.py       the largest boundary that satisfies all needs
    state.py          all of the above in one place, and how pages come and go
    evicting.py balancing.py              making room
    requests.py                           checks of what comes in
    planning.py lookup.py reserving.py sealing.py     the three verbs
    reports.py check.py                   what operators see, what must always hold
    store.py          the API
"""
