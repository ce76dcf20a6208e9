"""How a store of the lab evicts, and what of it goes to nvme.

::

    lru                  the policy by name, of every tier; every block is written to nvme, soon
    ttl=600              where the policy takes one: seconds
    lru+demote           only what dram would give up next is written
    lru+second-sight     only what was used twice is written
"""

from __future__ import annotations

import dataclasses

from anchorstore.server.core.admission import ADMISSIONS, Admission
from anchorstore.server.core.policies import POLICIES, Policy, Ttl

DEMOTE = "demote"
TTL_SECONDS = 3600
"""Of the policy ttl where nothing is said, as in the daemon."""
TTL_SECONDS_MAX = 10**9

DEFAULT_ADMISSION = "always"


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a store.

    Attributes:
        policy: name of the order of eviction.
        is_ahead: whether blocks are written to nvme ahead of need.
        admission: name of the rule that they pass first.
        ttl_seconds: the age of the policy ttl.
    """

    policy: str = "lru"
    is_ahead: bool = True
    admission: str = DEFAULT_ADMISSION
    ttl_seconds: int = TTL_SECONDS

    def __str__(self) -> str:
        age = "" if self.ttl_seconds == TTL_SECONDS else f"={self.ttl_seconds}"
        admission = [] if self.admission == DEFAULT_ADMISSION else [self.admission]
        return "+".join([self.policy + age, *([] if self.is_ahead else [DEMOTE]), *admission])

    @property
    def needs_nvme(self) -> bool:
        """Whether it differs from its policy alone only where there is an nvme tier."""
        return not self.is_ahead or self.admission != DEFAULT_ADMISSION

    def make_policy(self) -> Policy:
        """The policy."""
        if self.policy == Ttl.name:
            return Ttl(seconds=float(self.ttl_seconds))
        return POLICIES[self.policy]()

    def make_admission(self) -> Admission:
        """The rule."""
        return ADMISSIONS[self.admission]()


def parse_variant(text: str) -> Variant:
    """A variant as people write it.  ValueError says what is wrong."""
    first, *words = text.split("+")
    policy, takes_age, age = first.partition("=")
    if policy not in POLICIES or (takes_age and policy != Ttl.name):
        raise ValueError(f"{first!r} is no policy: {', '.join(POLICIES)}, {Ttl.name}=SECONDS")
    variant = Variant(policy)
    if takes_age:
        if not age.isdecimal() or not 1 <= int(age) <= TTL_SECONDS_MAX:
            raise ValueError(f"{age!r} seconds: a whole number from 1 to {TTL_SECONDS_MAX}")
        variant = dataclasses.replace(variant, ttl_seconds=int(age))
    for word in words:
        if word == DEMOTE and variant.is_ahead:
            variant = dataclasses.replace(variant, is_ahead=False)
        elif word in ADMISSIONS and variant.admission == DEFAULT_ADMISSION:
            variant = dataclasses.replace(variant, admission=word)
        else:
            raise ValueError(f"{word!r} after a policy: one of {', '.join([DEMOTE, *ADMISSIONS])}")
    return variant
