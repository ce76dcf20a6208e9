"""The client: what an engine imports.  Loads no torch, no redis, no daemon.

Reading order::

    options.py    what a caller says              counters.py   what a client has seen
    effects.py    what the steps ask a driver     gate.py       whether a call is worth trying
    session.py    attach, stay attached, call     exchange.py   requests and replies, no socket
    limits.py     how many pages a call may name
    lookups.py    get: look up, hold, end         handles.py, blocks.py  windows and blocks
    reserving.py  put: ask, fill                  writing.py    reservations
    staging.py    memory on its way out           mapping.py    memory that is read in place
    handover.py   leases for other processes      buffers.py    bytes, arrays, tensors
    device.py     blocks into a CUDA device's memory
    events.py     what an engine's own cache does
    blocking.py, client.py, janitor.py, watch.py     the blocking face
    aio.py, async_client.py                the asyncio face
"""

import logging

from anchorstore.client.async_client import AsyncClient
from anchorstore.client.client import Client
from anchorstore.client.events import EventPublisher
from anchorstore.client.options import (
    ClientOptions,
    NamespaceSpec,
    NeedAll,
    NeedLast,
    NeedWindow,
)
from anchorstore.client.writing import PutOutcome

logging.getLogger("anchorstore").addHandler(logging.NullHandler())

__all__ = [
    "AsyncClient",
    "Client",
    "ClientOptions",
    "EventPublisher",
    "NamespaceSpec",
    "NeedAll",
    "NeedLast",
    "NeedWindow",
    "PutOutcome",
]
