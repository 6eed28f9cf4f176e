"""Containers with another's limits.

A token's policy file and CDI spec say for whom they are and what it may have. That must be the
container to whose entry in kubelet's checkpoint the token belongs, and what its pod was granted.
Where the runtime knows no CDI, what the spec would say stands in the plugin's answer itself. Whole
cards need no limits, so they may have no policy and no accounts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tests.e2e.auditor import claims, nodes, pods, tokens
from tests.e2e.auditor.claims import Claim
from tests.e2e.auditor.evidence import Evidence, Held, NodeFiles, TokenThing
from tests.e2e.auditor.findings import Finding, Kind
from tests.e2e.auditor.layouts import Layout
from tests.e2e.auditor.malformed import MalformedError
from tests.e2e.auditor.nodes import Cards
from tests.e2e.auditor.pod_annotations import ALLOCATED, Slot
from tests.e2e.auditor.pods import Pod
from tests.e2e.auditor.tokens import Owners

_WHOLE = 100
"""Percent: all of a card, which is no limit, as 0 is none."""


class Said(NamedTuple):
    """A claim, where it stands, and the kinds of finding that it leads to."""

    claim: Claim
    where: str
    wrong_owner: Kind
    wrong_limits: Kind


def check(evidence: Evidence) -> Iterator[Finding]:
    by_uid = {pod.uid: pod for pod in map(Pod.of, evidence.pods)}
    for node, files in evidence.files.items():
        owners = tokens.owners(files, evidence.layouts)
        yield from _twice(node, owners)
        yield from _missing(node, evidence, files, by_uid)
        yield from _answers(node, evidence, files, by_uid)
        for thing, said in _all_said(node, files):
            if isinstance(said, Finding):
                yield said
                continue
            entries = owners.get((thing.layout.cdi_kind, thing.token), [])
            if len(entries) != 1:
                continue  # left behind, or reported by _twice
            pod = by_uid.get(entries[0].pod_uid)
            yield from _owner(said, entries[0], pod)
            if pod is not None:
                yield from _limits(said, entries[0], pod, evidence.resources.count)


def _all_said(node: str, files: NodeFiles) -> Iterator[tuple[TokenThing, Said | Finding]]:
    for spec in files.specs:
        where = f"node {node} {spec.path}"
        try:
            env = claims.spec_env(spec.content or b"", spec.layout.cdi_kind, spec.token)
            claim = spec.layout.read_env(env)
        except MalformedError as error:
            yield spec, Finding(Kind.SPEC_MALFORMED, where, str(error))
        else:
            yield spec, Said(claim, where, Kind.SPEC_OWNER, Kind.SPEC_LIMITS)
    for folder in files.folders:
        if folder.content is None:
            continue
        where = f"node {node} {folder.path}/{folder.layout.policy_file}"
        try:
            claim = folder.layout.read_policy(folder.content)
        except MalformedError as error:
            yield folder, Finding(Kind.POLICY_MALFORMED, where, str(error))
        else:
            yield folder, Said(claim, where, Kind.POLICY_OWNER, Kind.POLICY_LIMITS)


def _twice(node: str, owners: Owners) -> Iterator[Finding]:
    for (kind, token), entries in owners.items():
        if len(entries) > 1:
            holders = sorted(f"{one.container} of pod {one.pod_uid}" for one in entries)
            yield Finding(
                Kind.TOKEN_TWICE,
                f"node {node} {kind}={token}",
                f"kubelet's checkpoint gives it to containers {' and '.join(holders)}",
            )


def _missing(
    node: str, evidence: Evidence, files: NodeFiles, by_uid: Mapping[str, Pod]
) -> Iterator[Finding]:
    """Find running containers that lack something: the next restart would find no card."""
    there = {
        "CDI spec": {(one.layout.cdi_kind, one.token) for one in files.specs},
        "policy file": {
            (one.layout.cdi_kind, one.token) for one in files.folders if one.content is not None
        },
        "state": {(one.layout.cdi_kind, one.token) for one in files.states},
    }
    cards = nodes.registers(evidence.nodes).get(node, {})
    for layout in evidence.layouts:
        for entry in files.checkpoint:
            pod = by_uid.get(entry.pod_uid)
            container = pod and pod.container(entry.container)
            if not (pod and pod.live and not pod.deleting and container and container.running):
                continue
            whole = _is_whole(_slot(pod, entry.container, evidence.resources.count), cards)
            for token in sorted(tokens.of_entry(entry, layout)):
                needs = _needs(entry, layout, token, whole=whole)
                lacks = [what for what in needs if (layout.cdi_kind, token) not in there[what]]
                if lacks:
                    yield Finding(
                        Kind.TOKEN_MISSING,
                        f"node {node} {layout.cdi_kind}={token}",
                        f"container {entry.container} of {pod.full_name} runs with it, but it has "
                        f"no {' and no '.join(lacks)} under {', '.join(layout.cdi_folders)}, "
                        f"{layout.tokens} and {layout.states}",
                    )


def _needs(entry: Held, layout: Layout, token: str, *, whole: bool) -> Iterator[str]:
    if token in tokens.of_devices(entry, layout):
        yield "CDI spec"
    if not whole:
        yield "policy file"
        if layout.states is not None:
            yield "state"


def _is_whole(slot: Slot, cards: Cards) -> bool:
    """Return whether all that was granted are cards with nobody beside, and without limits."""
    return bool(slot) and all(
        grant.card in cards
        and grant.memory >= cards[grant.card].memory
        and grant.cores in (0, _WHOLE)
        for grant in slot
    )


def _answers(
    node: str, evidence: Evidence, files: NodeFiles, by_uid: Mapping[str, Pod]
) -> Iterator[Finding]:
    """Judge answers with a token and without CDI: their own env has the limits."""
    for layout in evidence.layouts:
        for entry in files.checkpoint:
            pod = by_uid.get(entry.pod_uid)
            named = tokens.of_annotation(entry, layout)
            if pod is None or not named or tokens.of_devices(entry, layout):
                continue
            where = f"node {node} answer to {pod.full_name} container {entry.container}"
            try:
                claim = layout.read_env(entry.env)
            except MalformedError as error:
                yield Finding(Kind.ANSWER_LIMITS, where, str(error))
                continue
            said = Said(claim, where, Kind.ANSWER_LIMITS, Kind.ANSWER_LIMITS)
            yield from _limits(said, entry, pod, evidence.resources.count)


def _owner(said: Said, entry: Held, pod: Pod | None) -> Iterator[Finding]:
    claim = said.claim
    for name, value, owner in (
        ("pod UID", claim.uid, entry.pod_uid),
        ("container", claim.container, entry.container),
        ("pod", claim.pod, None if pod is None else pod.full_name),
    ):
        if value is not None and owner is not None and value != owner:
            yield Finding(
                said.wrong_owner,
                said.where,
                f"it is for {name} {value}, its token belongs to {owner} by kubelet's checkpoint",
            )


def _limits(said: Said, entry: Held, pod: Pod, count_resource: str) -> Iterator[Finding]:
    claim, slot = said.claim, _slot(pod, entry.container, count_resource)
    who = f"container {entry.container} of {pod.full_name}"
    compared: list[tuple[str, object, object]] = [
        ("device ids", claim.device_ids and sorted(claim.device_ids), sorted(entry.device_ids)),
        ("cards", claim.cards, tuple(grant.card for grant in slot)),
        ("MiB", claim.memory, tuple(grant.memory for grant in slot)),
        ("% of cores", claim.cores, slot[0].cores if slot else None),
        ("% of cores", claim.card_cores, tuple(grant.cores % _WHOLE for grant in slot)),
    ]
    for name, value, rightful in compared:
        if value is not None and value != rightful:
            source = "kubelet's checkpoint" if name == "device ids" else ALLOCATED
            yield Finding(
                said.wrong_limits,
                said.where,
                f"it gives {who} {name} {value}, {source} says {rightful}",
            )


def _slot(pod: Pod, container: str, count_resource: str) -> Slot:
    for owner, slot in pods.by_container(pod, pod.slots(), count_resource):
        if owner is None or owner.name == container:
            return slot
    return ()
