"""Devices that fail, as the core must know of them: which segments take nothing, which are gone.

::

    healthy --takes no blocks, stuck--> closed ---now and then---> reopened for a moment, so that a
       ^                                  |                        write can find out whether it
       +------- it has passed ------------+                        has passed
                                          +-- offline or without an answer
                                                  for long ------> lost, some segments a look

What lies on a device that is gone stays known for a while, since it may come back; then it is
forgotten, so that writers bring it again.
"""

from __future__ import annotations

import dataclasses

from anchorstore.clock import Clock
from anchorstore.server.core.store import Store
from anchorstore.tiers.nvme.device import NvmeDevice
from anchorstore.tiers.nvme.format import UNIT_BYTES
from anchorstore.tiers.nvme.health import State
from anchorstore.tiers.nvme.tier import NvmeTier

CLOSED_SECONDS = 30.0  # from one attempt to the next
ATTEMPT_SECONDS = 1.0
LOST_SECONDS = 90.0  # offline, or without an answer, for as long: given up
CALM_SECONDS = 10.0  # that a device has answered, before one that was stuck is trusted again
SEGMENTS_A_LOOK = 256


@dataclasses.dataclass(eq=False, slots=True)
class _Watched:
    """One device.  `segments` are its numbers in the core."""

    device: NvmeDevice
    segments: range
    is_closed: bool = False
    turn_at: float = 0.0  # of the next attempt, or of its end
    calm_at: float = 0.0
    is_stuck: bool = False  # or was until a moment ago
    offline_since: float | None = None
    segments_lost: int = 0


class DeviceWatch:
    """Looks at the devices' health and tells the core.  On the event loop alone."""

    def __init__(self, core: Store, nvme: NvmeTier, clock: Clock) -> None:
        self._core, self._clock = core, clock
        segment_units = nvme.segment_bytes // UNIT_BYTES
        self._watched = []
        for device in nvme.devices:
            first = device.base_unit // segment_units
            self._watched.append(_Watched(device, range(first, first + device.segments)))

    def look(self) -> None:
        """Once around; a bounded amount of work."""
        now = self._clock.now()
        for watched in self._watched:
            watched.device.health.tell_lost()
            state = watched.device.health.state
            is_stalled = watched.device.queue.is_stalled()
            self._stuck_or_not(watched, is_stalled, now)
            if state == State.HEALTHY and not watched.is_stuck:
                self._healthy(watched)
                continue
            if now >= watched.turn_at and not (watched.is_stuck and watched.is_closed):
                self._turn(watched, now)
            if state == State.OFFLINE or is_stalled:
                self._offline(watched, now)
            else:
                watched.offline_since = None

    @staticmethod
    def _stuck_or_not(watched: _Watched, is_stalled: bool, now: float) -> None:
        """Says so when that changes."""
        device = watched.device
        if is_stalled:
            watched.calm_at = now + CALM_SECONDS
        was_stuck, watched.is_stuck = watched.is_stuck, now < watched.calm_at
        if watched.is_stuck and not was_stuck:
            device.health.say(
                f"has not answered for {device.limits.deadline_seconds:g} s: it is asked for "
                "nothing until it does, and then given nothing new for a while"
            )
        elif was_stuck and not watched.is_stuck:
            device.health.say(f"has answered for {CALM_SECONDS:g} s: it is used again")

    def _healthy(self, watched: _Watched) -> None:
        if watched.is_closed:
            self._core.reopen_segments(watched.segments)
        watched.is_closed, watched.turn_at = False, 0.0
        watched.offline_since, watched.segments_lost = None, 0

    def _turn(self, watched: _Watched, now: float) -> None:
        """Closes an open device, opens a closed one for a moment."""
        if watched.is_closed:
            self._core.reopen_segments(watched.segments)
            watched.turn_at = now + ATTEMPT_SECONDS
        else:
            self._core.close_segments(watched.segments)
            watched.turn_at = now + CLOSED_SECONDS
        watched.is_closed = not watched.is_closed

    def _offline(self, watched: _Watched, now: float) -> None:
        if watched.offline_since is None:
            watched.offline_since, watched.segments_lost = now, 0
        done = watched.segments_lost
        if now - watched.offline_since >= LOST_SECONDS and done < len(watched.segments):
            self._core.lose_segments(watched.segments[done : done + SEGMENTS_A_LOOK])
            watched.segments_lost += SEGMENTS_A_LOOK
