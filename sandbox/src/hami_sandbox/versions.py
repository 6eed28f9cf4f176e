"""The version of Kubernetes that a sandbox stands in for."""

from __future__ import annotations

KUBERNETES = "v1.36.3"
#: As users name it: 1.36.
KUBERNETES_MINOR = KUBERNETES.removeprefix("v").rpartition(".")[0]
