"""How a store of the lab evicts, and what of it goes to nvme.

::

    lru                  the policy by name, of every tier; every block is written to nvme, soon
    lru+demote           only what dram would give up next is written
    lru+second-sight     only what was used twice is written
"""

from __future__ import annotations

import dataclasses

from anchorstore.server.core.admission import ADMISSIONS, Admission
from anchorstore.server.core.policies import POLICIES, Policy, Ttl

DEMOTE = "demote"
TTL_SECONDS = 900.0
"""Of the policy ttl: long enough for a pause, shorter than a trace."""

DEFAULT_ADMISSION = "always"


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a store.

    Attributes:
        policy: name of the order of eviction.
        is_ahead: whether blocks are written to nvme ahead of need.
        admission: name of the rule that they pass first.
    """

    policy: str = "lru"
    is_ahead: bool = True
    admission: str = DEFAULT_ADMISSION

    def __str__(self) -> str:
        admission = [] if self.admission == DEFAULT_ADMISSION else [self.admission]
        return "+".join([self.policy, *([] if self.is_ahead else [DEMOTE]), *admission])

    @property
    def needs_nvme(self) -> bool:
        """Whether it differs from its policy alone only where there is an nvme tier."""
        return not self.is_ahead or self.admission != DEFAULT_ADMISSION

    def make_policy(self) -> Policy:
        """The policy."""
        return Ttl(seconds=TTL_SECONDS) if self.policy == Ttl.name else POLICIES[self.policy]()

    def make_admission(self) -> Admission:
        """The rule."""
        return ADMISSIONS[self.admission]()


def parse_variant(text: str) -> Variant:
    """A variant as people write it.  ValueError says what is wrong."""
    policy, *words = text.split("+")
    if policy not in POLICIES:
        raise ValueError(f"{policy!r} is no policy: {', '.join(POLICIES)}")
    variant = Variant(policy)
    for word in words:
        if word == DEMOTE and variant.is_ahead:
            variant = dataclasses.replace(variant, is_ahead=False)
        elif word in ADMISSIONS and variant.admission == DEFAULT_ADMISSION:
            variant = dataclasses.replace(variant, admission=word)
        else:
            raise ValueError(f"{word!r} after a policy: one of {', '.join([DEMOTE, *ADMISSIONS])}")
    return variant
