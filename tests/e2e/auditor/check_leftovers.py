"""Leftovers: node locks, CDI specs, token folders, state files, ledger entries.

A thing of a token is left behind when no entry of kubelet's checkpoint names the token, or when
the pod of that entry is no longer in the API on this node. Entries of gone pods are kubelet's own:
it drops them when it next writes, and nobody reports them. A pod that has ended but is still there
may keep its things. A lock is left behind when its pod is gone, has ended, is on another node, or
is done with binding; when the harness says that all is quiet, any lock is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.e2e.auditor import malformed, node_annotations, nodes, tokens
from tests.e2e.auditor.evidence import Evidence, NodeFiles, TokenThing
from tests.e2e.auditor.findings import Finding, Kind
from tests.e2e.auditor.malformed import MalformedError
from tests.e2e.auditor.node_annotations import LOCK_PREFIX, Lock
from tests.e2e.auditor.pod_annotations import PHASE
from tests.e2e.auditor.pods import ContainerKind, Pod
from tests.e2e.auditor.tokens import Owners


def check(evidence: Evidence) -> Iterator[Finding]:
    pods = [Pod.of(document) for document in evidence.pods]
    yield from _locks(evidence, {pod.full_name: pod for pod in pods})
    yield from _phases(pods)
    by_uid = {pod.uid: pod for pod in pods}
    for node, files in evidence.files.items():
        owners = tokens.owners(files, evidence.layouts)
        for kind, things in (
            (Kind.SPEC_LEFT, files.specs),
            (Kind.FOLDER_LEFT, files.folders),
            (Kind.STATE_LEFT, files.states),
        ):
            for thing in things:
                why = _left(node, thing, owners, by_uid)
                if why is not None:
                    yield Finding(kind, f"node {node} {thing.path}", why)
        yield from _ledger(node, files, by_uid)
        for missing in files.unreadable:
            yield Finding(Kind.UNREADABLE, f"node {node} {missing.path}", missing.why)


def _locks(evidence: Evidence, pods: Mapping[str, Pod]) -> Iterator[Finding]:
    for node in evidence.nodes:
        name = nodes.name_of(node)
        for key, value in nodes.annotations_of(node).items():
            if not key.startswith(LOCK_PREFIX):
                continue
            try:
                lock = node_annotations.lock(value)
            except MalformedError:
                continue  # check_nodes.py reports it
            why = _idle(lock, name, pods)
            if why is None and evidence.quiet:
                why = "nothing is being placed"
            if why is not None:
                # The value is part of the subject: the next pod's lock is another lock.
                yield Finding(Kind.LOCK_LEFT, f"node {name} {key}={malformed.shown(value)}", why)


def _idle(lock: Lock, node: str, pods: Mapping[str, Pod]) -> str | None:
    """Return why nobody needs the lock; of one of the older form nobody can say."""
    if not lock.name:
        return None
    owner = pods.get(f"{lock.namespace}/{lock.name}")
    if owner is None:
        return "the API has no such pod"
    if owner.ended:
        return f"its pod has ended ({owner.phase})"
    if owner.node and owner.node != node:
        return f"its pod is on node {owner.node}"
    phase = owner.annotations.get(PHASE)
    if owner.node and phase in ("success", "failed"):
        return f"its pod is done with binding ({PHASE} {phase})"
    return None


def _phases(pods: list[Pod]) -> Iterator[Finding]:
    for pod in pods:
        apps = [one for one in pod.containers if one.kind is ContainerKind.APP]
        if pod.live and pod.annotations.get(PHASE) == "allocating" and all(a.running for a in apps):
            yield Finding(
                Kind.PHASE_STUCK,
                pod.subject,
                f"{PHASE} is still allocating, though all its containers run",
            )


def _left(node: str, thing: TokenThing, owners: Owners, pods: Mapping[str, Pod]) -> str | None:
    entries = owners.get((thing.layout.cdi_kind, thing.token), [])
    if not entries:
        return "no entry of kubelet's checkpoint names its token"
    gone = [entry for entry in entries if _gone(entry.pod_uid, node, pods) is not None]
    if len(gone) < len(entries):
        return None
    return f"container {gone[0].container}: {_gone(gone[0].pod_uid, node, pods)}"


def _gone(uid: str, node: str, pods: Mapping[str, Pod]) -> str | None:
    pod = pods.get(uid)
    if pod is None:
        return f"the API has no pod with UID {uid}"
    if pod.node != node:
        return f"its pod {pod.full_name} is on node {pod.node or '(none)'}"
    return None


def _ledger(node: str, files: NodeFiles, pods: Mapping[str, Pod]) -> Iterator[Finding]:
    for file in files.ledger:
        subject = f"node {node} {file.path}"
        try:
            uids = file.layout.read_ledger(file.content)
        except MalformedError as error:
            yield Finding(Kind.UNREADABLE, subject, str(error))
            continue
        for uid in sorted(uids):
            why = _gone(uid, node, pods)
            if why is not None:
                yield Finding(Kind.LEDGER_LEFT, subject, why)
