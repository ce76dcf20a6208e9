"""When a tick was: how long ago a page was used, from its stamp.

::

    ticks     1 ......... 812 ....... 2,040 ...      one mark a second at most
    seconds   10.0        11.1        12.3

A stamp lies between two marks; marks beyond some thousands are thinned out, every second one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from anchorstore.server.core.types import U64

MARKS_MAX = 4096
AGE_LIMITS_SECONDS = (1, 10, 60, 600, 3600, 21_600, 86_400)


class UseTimes:
    """Marks of time among the ticks."""

    def __init__(self) -> None:
        self._ticks: list[int] = [0]
        self._seconds: list[float] = [0.0]

    def note(self, tick: int, seconds: float) -> None:
        """It is so late; ticks and seconds never fall."""
        if seconds - self._seconds[-1] < 1.0:
            return
        self._ticks.append(tick)
        self._seconds.append(seconds)
        if len(self._ticks) > MARKS_MAX:
            self._ticks = self._ticks[::2]
            self._seconds = self._seconds[::2]

    def ages(self, stamps: U64, now: float) -> npt.NDArray[np.float64]:
        """Seconds since each stamp [n] was given, to the mark before it."""
        at = np.searchsorted(np.array(self._ticks, np.uint64), stamps, side="right") - 1
        ages: npt.NDArray[np.float64] = now - np.array(self._seconds)[at]
        return np.maximum(ages, 0.0)


def by_limit(ages: npt.NDArray[np.float64]) -> dict[str, int]:
    """How many ages lie within each limit and beyond the one below: "60" for 10 to 60 seconds."""
    counts = np.bincount(
        np.searchsorted(np.array(AGE_LIMITS_SECONDS, np.float64), ages),
        minlength=len(AGE_LIMITS_SECONDS) + 1,
    ).tolist()
    names = [*(str(limit) for limit in AGE_LIMITS_SECONDS), "inf"]
    return {name: count for name, count in zip(names, counts, strict=True) if count}
