"""The API server under test: its address, and commands of its machine.

Everything comes from the environment, so that the same files judge a real kube-apiserver and any
other server that claims to be one:

- `HAMI_CONFORMANCE_KUBECONFIG`: a kubeconfig of an administrator of the target.
- `HAMI_CONFORMANCE_CALLBACK`: the host under which the target reaches a server that a test starts;
  127.0.0.1 if unset.
- `HAMI_CONFORMANCE_COMPACT`: a command that makes the target forget its history; `{revision}` in it
  is replaced by the last resourceVersion to forget. With etcd behind the target:
  `curl -fsS -d {"revision":"{revision}"} http://127.0.0.1:2379/v3/kv/compaction`
  (split as a shell would, so quote the JSON; no shell is started).
- `HAMI_CONFORMANCE_LACKS`: what the target does not claim to have, comma-separated, out of `NEEDS`.
  Tests that need it are not selected; a test is never skipped.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shlex
import subprocess

from tests.kubeapi.client import Client

KUBECONFIG = "HAMI_CONFORMANCE_KUBECONFIG"
CALLBACK = "HAMI_CONFORMANCE_CALLBACK"
COMPACT = "HAMI_CONFORMANCE_COMPACT"
LACKS = "HAMI_CONFORMANCE_LACKS"

NEEDS = {
    "rbac": "service-account tokens and RBAC",
    "compaction": f"a way to make the server forget its history ({COMPACT})",
    "webhooks": "admission webhooks",
    "crd": "CustomResourceDefinitions",
    "openapi": "OpenAPI documents",
}


class TargetError(Exception):
    """The target is not described well enough; the message says which variable to set."""


@dataclasses.dataclass(frozen=True)
class Target:
    client: Client
    callback: str = "127.0.0.1"
    compact_command: str | None = None

    def compact(self, revision: str) -> None:
        """Make the server forget everything up to this resourceVersion."""
        if not self.compact_command:
            raise TargetError(
                f"this test needs {NEEDS['compaction']}: set {COMPACT}, "
                f"or declare {LACKS}=compaction if the target has none"
            )
        words = [word.replace("{revision}", revision) for word in shlex.split(self.compact_command)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        if done.returncode != 0:
            raise TargetError(f"{shlex.join(words)} failed ({done.returncode}): {done.stderr}")


def lacks() -> frozenset[str]:
    """Return what the target is declared to lack."""
    declared = {word.strip() for word in os.environ.get(LACKS, "").split(",")} - {""}
    unknown = declared - NEEDS.keys()
    if unknown:
        raise TargetError(f"{LACKS} names {sorted(unknown)}; known are {sorted(NEEDS)}")
    return frozenset(declared)


def from_environment() -> Target:
    path = os.environ.get(KUBECONFIG)
    if not path:
        raise TargetError(
            f"no API server to judge: set {KUBECONFIG} to the kubeconfig of an administrator, e.g. "
            f"{KUBECONFIG}=$HOME/.kube/config python -m pytest tests/conformance"
        )
    return Target(
        client=Client.from_kubeconfig(pathlib.Path(path)),
        callback=os.environ.get(CALLBACK) or "127.0.0.1",
        compact_command=os.environ.get(COMPACT),
    )
