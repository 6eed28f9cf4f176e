"""A vendor of the reference: names, defaults and a rule of its own.

The product has rows of its own (hami.vendors); the two are kept apart, so that a wrong row cannot
be wrong on both sides. tests/oracle/sample_vendors.py has the vendors of the tests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hami.wire import node_register

Rule = Callable[[int, node_register.RegisteredCard], str | None]
"""A vendor's own rule: column and card to the reason of its refusal, or None."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RefVendor:
    """What the filter must know of a vendor; an empty name or key: the vendor has none."""

    name: str
    # Resources.
    count: str
    memory: str = ""
    percentage: str = ""
    cores: str = ""
    memory_factor: int = 1
    default_memory: int = 0
    default_cores: int = 0
    # Annotation keys: of the node, of the pod, of the pod's user.
    register: str = ""
    cordon: str = ""
    allocated: str = ""
    use_type: str = ""
    nouse_type: str = ""
    use_uuid: str = ""
    nouse_uuid: str = ""
    mode: str = ""
    numa_bind: str = ""
    enforces_quota: bool = True
    bounded_by_ids: bool = True
    rule: Rule | None = None
