"""The one error of starting to serve.

It is raised for what an operator must change: an address, a certificate, a missing package. The
message names the value, the rule it breaks and the remedy. What goes wrong later is an answer to
the caller or a line in the log, never this.
"""

from __future__ import annotations


class ServingError(Exception):
    """Serving cannot begin as configured."""
