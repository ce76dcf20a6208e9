"""How rights end: by their time, or with their session.

::

    lease, reservation     their time is over, or their session ends
    engine                 it has been silent (events.py), or its session ends
    session                its last connection is gone, or it never had one and its time is over
"""

from __future__ import annotations

from anchorstore.server.core import events, reserving
from anchorstore.server.core.lookup import end_lease
from anchorstore.server.core.sessions import Session
from anchorstore.server.core.state import State


def end_session(state: State, session: Session) -> None:
    """Ends a session with all that it holds."""
    for lease_id in list(session.leases):
        end_lease(state, lease_id)
    for reservation in list(session.reservations.values()):
        reserving.abort(state, reservation)
    events.leave(state, session)
    state.registry.detach(session)
    state.counters["sessions_ended"] += 1
    state.note("end", session.session_id.hex(), session.name)


def expire(state: State, now: float) -> None:
    """Ends whatever is over by now; clears some of what engines left behind."""
    for lease_id in state.leases.deadlines.due(now):
        end_lease(state, lease_id)
        state.counters["leases_expired"] += 1
    for reservation_id in state.reservations.due(now):
        reserving.close(state, state.reservation_by_id[reservation_id])
        state.counters["reservations_expired"] += 1
    for session_id in state.engines.deadlines.due(now):
        events.leave(state, state.registry.sessions[session_id])
        state.counters["engines_expired"] += 1
    for session_id in state.registry.idle.due(now):
        end_session(state, state.registry.sessions[session_id])
        state.counters["sessions_expired"] += 1
    events.sweep(state)


def next_deadline(state: State) -> float | None:
    """When `expire` has work next."""
    deadlines = (state.leases.deadlines, state.reservations, state.registry.idle)
    lines = (*deadlines, state.engines.deadlines)
    ends = [end for line in lines if (end := line.next_deadline()) is not None]
    return min(ends, default=None)
