"""`$(NAME)` in commands and variables, as Kubernetes fills it in.

A name that is not known stays as it was written; `$$` is a dollar that begins nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return variables.get(found[1], found[0])

    return _REFERENCE.sub(value, text)
