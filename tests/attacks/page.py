"""docs/threats.md: the fixed text, and the attacks with their outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.attacks.attack import GAP, NO_GAIN, REFUSED, REPORTED, Attack, Attacker, Outcome

_BEDS = {"e2e": "real Kubernetes", "gpu": "real GPU"}
_HEAD = """\
# Threats

```
make test                                    # tries all of these
.venv/bin/python -m pytest tests/attacks     # only these
.venv/bin/python -m tests.attacks.report     # tries them and writes this page
```

This page is written by the test run: `tests.attacks.report`. Each row is a test that tries the
attack. The outcome is not typed in. It follows from what others counted: the driver its bytes,
the API server its objects, a scheduler its table, the monitor its events.

| outcome | meaning | attacks |
|---|---|---|
"""
_MEANING = {
    REFUSED: "a part of hami or the API server says no, and nothing is gained",
    NO_GAIN: "the attempt runs, and gains nothing",
    REPORTED: "the attempt gains something, and an Event names it within 10 seconds",
    GAP: "the attempt gains something; the row says what, and what is done about it",
}
_TAIL = """\
## Outside

- **Isolation in the container is cooperative.** A program that is written to evade libvgpu can:
  these are the rows with *reported*. The monitor sees them from the host. Use MIG or whole cards
  between tenants who do not trust each other ([isolation.md](isolation.md)).
- **Root on a node** can do what the node can: use all its cards, read its Secrets, lie about
  itself. What is tested is that it gains nothing on other nodes beyond the rows with *known
  gap*.
- **hostPath volumes, host namespaces and privileged pods without cards** are given or refused by
  the cluster's own Pod Security admission. Enforce at least `baseline` in namespaces of tenants:
  a pod that may mount the node's folders owns the node.
- **Nodes whose default runtime is NVIDIA's** give cards to every container that names them in
  `NVIDIA_VISIBLE_DEVICES`, also by `envFrom` or in its image. Set `accept-nvidia-visible-
  devices-envvar-when-unprivileged` to false there.
- **Cluster administrators**, the scheduler's own account and accounts in
  `admissionPolicy.trustedAccounts` are trusted.
- **Device plugins of other vendors** write their own annotations on their own nodes, once
  `devices.<vendor>.pluginAccounts` names their accounts. Until then every account that may write
  nodes or pods may write these; a grant stays hami's ([installing](install.md#other-vendors)).
- **Clusters before 1.30** have no admission policies. There, users who may patch pods can change
  annotations, and only signatures, ledger and scheduler hold ([grants](designs/002-grants.md)).
  Marks can be forged there as well: keep `--overuse=report`.
- **Denial of service** by an account's own quota of pods, and side channels on a shared card,
  are not tested.

Report a hole that is not here as [SECURITY.md](../SECURITY.md) says.
"""


def render(attacks: Iterable[Attack], happened: Mapping[str, Outcome]) -> str:
    """Return the page; `happened` has the outcome of each attack."""
    listed = list(attacks)
    counts = [
        f"| {outcome} | {meaning} | {sum(happened[a.id] == outcome for a in listed)} |"
        for outcome, meaning in _MEANING.items()
    ]
    parts = [_HEAD + "\n".join(counts) + "\n"]
    for attacker in Attacker:
        own = [each for each in listed if each.attacker is attacker]
        rows = "\n".join(_row(each, happened[each.id]) for each in own)
        parts.append(
            f"## {attacker.value}\n\n| tries | outcome | because |\n|---|---|---|\n{rows}\n"
        )
    return "\n".join([*parts, _TAIL])


def _row(attack: Attack, outcome: Outcome) -> str:
    also = ", ".join(_BEDS[bed] for bed in attack.also)
    tries = f"{attack.tries} (`{attack.id}`{'; also on ' + also if also else ''})"
    first, rest = attack.reference[:1].upper(), attack.reference[1:]
    why = f"{attack.why}. {first}{rest}" if first else attack.why
    shown = f"**{outcome}**" if outcome in (REPORTED, GAP) else str(outcome)
    return f"| {tries} | {shown} | {why} |"
