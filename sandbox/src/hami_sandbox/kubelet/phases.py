"""The phase of a pod, from the states of its containers. Pure."""

from __future__ import annotations

from hami_sandbox.kubelet import decisions
from hami_sandbox.kubelet import pod as pods
from hami_sandbox.kubelet.attempts import Histories, latest
from hami_sandbox.kubelet.pod import Object
from hami_sandbox.runtime.spec import Phase


def phase(pod: Object, found: Histories, *, over: bool) -> str:
    """Return the phase; `over`: nothing of the pod runs or will run."""
    mains = [latest(found, container["name"]) for container in pods.containers(pod)]
    if over:
        good = all(each is not None and each.exited and each.exit_code == 0 for each in mains)
        return "Succeeded" if good and mains else "Failed"
    if not decisions.initialized(pod, found):
        return "Pending"
    made = [each for each in mains if each is not None and each.phase is not Phase.CREATED]
    # As kubelet has it: one that has not been made yet holds the whole pod back.
    return "Running" if made and len(made) == len(mains) else "Pending"
