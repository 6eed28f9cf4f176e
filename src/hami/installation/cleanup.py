"""Remove what an uninstall leaves behind: lease, node annotations, Secrets.

Helm removes what it installed. The rest was written by our jobs, by kube-scheduler and by the
scheduler while they ran. A Secret is removed only if a job of ours created it.

Helm does not wait for the pods: a kube-scheduler that is about to end may write its lease once
more. So the lease counts as removed once it has stayed away for a while, and nodes come after it.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Collection, Sequence

from hami.installation import secret_objects
from hami.installation.job import PATIENCE_S, InstallationError, Job
from hami.kube import errors as kube_errors
from hami.kube import listwatch, paths
from hami.wire import annotation_keys, codec, objects, text_values
from hami.wire import errors as wire_errors

#: Seconds in which a running scheduler would write its lease again.
AWAY_S = 5.0


class _Node(codec.Object, frozen=True):
    metadata: objects.Metadata = objects.Metadata()


async def remove(
    job: Job,
    *,
    namespace: str,
    secrets: Sequence[str],
    lease: str,
    marks: Sequence[str],
    simulated: Collection[str] = (),
) -> list[str]:
    """Remove everything that can be removed; returns what could not, and why.

    `marks` are annotations of nodes that offer cards, which no agent serves any more; `simulated`
    are those that may be of simulated cards, and are if the node's mark lists them.
    """
    failures: list[str] = []

    async def attempt(what: str, step: Callable[[], Awaitable[None]]) -> None:
        # One refusal must not stop the removal of the rest.
        try:
            await job.persist(step)
        except InstallationError as error:
            failures.append(str(error))
        except (kube_errors.KubeError, wire_errors.WireError) as error:
            failures.append(f"{what}: {error}")

    if lease:
        what = f"Lease {namespace}/{lease}"
        await attempt(what, functools.partial(_lease, job, what, paths.lease(namespace, lease)))
    await attempt("nodes", functools.partial(_nodes, job, marks, simulated))
    for name in secrets:
        what = f"Secret {namespace}/{name}"
        await attempt(what, functools.partial(_secret, job, what, namespace, name))
    return failures


async def _lease(job: Job, what: str, path: str) -> None:
    if not await _deleted(job, path):
        job.say(f"{what}: there is none")
        return
    job.say(f"{what}: deleted")
    ends = job.clock() + PATIENCE_S
    while job.clock() < ends:
        await job.sleep(AWAY_S)
        if not await _deleted(job, path):
            return
        job.say(f"{what}: a scheduler wrote it again; deleted again")
    raise InstallationError(
        what,
        f"was written again for {PATIENCE_S:g} s, so a scheduler still runs",
        "stop that scheduler, then run this again",
    )


async def _nodes(job: Job, marks: Sequence[str], simulated: Collection[str]) -> None:
    marked: dict[str, list[str]] = {}
    async for page in listwatch.pages(job.client, paths.nodes(), {}):
        if page.first:
            marked.clear()
        for item in page.items:
            name, found = _marked(item, marks, simulated)
            if found:
                marked[name] = found
    for name, found in marked.items():
        change = codec.encode({"metadata": {"annotations": dict.fromkeys(found)}})
        try:
            await job.client.patch(paths.nodes(name), change)
        except kube_errors.NotFound:
            continue  # the node was deleted meanwhile
        job.say(f"Node {name}: annotation {', '.join(found)} removed")
    if not marked:
        job.say("nodes: none has an annotation of ours")


def _marked(item: bytes, marks: Sequence[str], simulated: Collection[str]) -> tuple[str, list[str]]:
    marks = (*marks, annotation_keys.SIMULATED)
    if not listwatch.mentions(item, [mark.encode() for mark in marks]):
        return "", []
    meta = codec.decode(item, _Node, what="node").metadata
    there = meta.annotations or {}
    listed = text_values.comma_list(there.get(annotation_keys.SIMULATED) or "")
    keys = dict.fromkeys((*marks, *(key for key in listed if key in simulated)))
    return meta.name or "", [key for key in keys if key in there]


async def _secret(job: Job, what: str, namespace: str, name: str) -> None:
    found = await secret_objects.read(job.client, namespace, name)
    if found is None:
        job.say(f"{what}: there is none")
    elif not found.ours:
        label = f"{secret_objects.MANAGED_BY}={secret_objects.US}"
        job.say(
            f"{what}: kept, because it lacks the label {label}: hami did not create it; "
            "delete it yourself if you no longer need it"
        )
    elif await _deleted(job, paths.secrets(namespace, name), uid=found.uid):
        job.say(f"{what}: deleted")


async def _deleted(job: Job, path: str, *, uid: str = "") -> bool:
    """Delete one object; False: there was none."""
    # With its UID, a new object of the same name is not deleted.
    body = codec.encode({"preconditions": {"uid": uid}}) if uid else None
    try:
        await job.client.delete(path, body)
    except kube_errors.NotFound:
        return False
    return True
