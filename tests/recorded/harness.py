"""HAMi's own code, asked through a program that is built outside this repository.

`HAMI_HARNESS` names it; docs/testing.md describes its protocol. It reads cases from standard input
and writes one answer for each, one JSON object per line. `facts` keeps of an answer what a peer of
HAMi can see.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from typing import Any

from tests.recorded.fleets import Document

VARIABLE = "HAMI_HARNESS"
#: HAMi writes them beside every vendor's, and they are the scheduler's own in the product.
_COMMON = {"hami.io/vgpu-node", "hami.io/vgpu-time"}
_CARD = ("id", "index", "count", "devmem", "devcore", "type", "numa", "health")


def program() -> str:
    """Return the path of the harness; raises SystemExit with the remedy if there is none."""
    path = os.environ.get(VARIABLE, "")
    if not path:
        raise SystemExit(
            f"{VARIABLE} names no program: build HAMi's code into one that answers cases as "
            "docs/testing.md describes, and set it to its path"
        )
    return path


def answers(cases: Iterable[Document]) -> Iterator[tuple[Document, Document]]:
    """Return each case with the facts that HAMi's code answers.

    A case with `slots` is asked twice: as HAMi counts a placed pod, and as it should.
    """
    asked: list[Document] = list(cases)
    lines = []
    for case in asked:
        plain = {key: value for key, value in case.items() if key != "slots"}
        lines.append(plain)
        if "slots" in case:
            lines.append(case)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    ran = subprocess.run([program()], input=text, capture_output=True, text=True, check=True)
    replies = iter(ran.stdout.splitlines())
    for case in asked:
        found = facts(case, json.loads(next(replies)))
        if "slots" in case:
            mended = facts(case, json.loads(next(replies)))
            if mended != found:
                found["mended"] = mended
        yield case, found


def facts(case: Document, answer: Document) -> Document:
    """Return the part of an answer that is compared, without what repeats the case."""
    if answer["id"] != case["id"]:
        raise ValueError(f"case {case['id']} was answered as {answer['id']}")
    if panic := answer.get("panic"):
        return {"panic": panic}
    admission = answer["admission"]
    found: Document = {
        "cards": {name: _cards(node) for name, node in sorted(answer.get("nodes", {}).items())}
    }
    if not admission["allowed"]:
        return found | {"denied": admission["message"]}
    found["pod"] = admitted(admission["pod"])
    found["requests"] = [
        {word: request["Nums"] for word, request in container.items()}
        for container in answer["requests"]
    ]
    if answer.get("passed"):
        return found | {"passed": True}
    if error := answer.get("error"):
        return found | {"error": error}
    found["nodes"] = {
        name: _outcome(outcome, mixed=mixed(found["cards"], name))
        for name, outcome in sorted(answer["outcomes"].items())
    }
    return found


def mixed(cards: Document, node: str) -> bool:
    """Return whether cards of a node differ in size or model."""
    return len({tuple(card[2:6]) for card in cards_of(cards, node)}) > 1


def cards_of(cards: Document, node: str) -> list[Any]:
    """Return the cards of a node, of whichever vendor."""
    of_vendors = (each for key, each in cards.items() if key.split("/")[0] == node)
    return [card for each in of_vendors for card in each or ()]


def _cards(node: Document) -> Any:
    if not node["healthy"] or node.get("error") or not node.get("devices"):
        return None
    empty = {"id": "", "type": "", "health": False}
    return [[card.get(key, empty.get(key, 0)) for key in _CARD] for card in node["devices"]]


def _outcome(outcome: Document, *, mixed: bool) -> Document:
    kept: Document = {}
    if outcome.get("reasons"):
        kept["reasons"] = sorted(outcome["reasons"])
    if not outcome.get("answers"):
        return kept
    kept["score"] = round(outcome.get("score", 0.0), 5)
    kept["answers"] = [
        {key: value for key, value in each.items() if key not in _COMMON}
        for each in outcome["answers"]
    ]
    if mixed:
        kept["entries"] = outcome["entries"]
    return kept


def admitted(pod: Document) -> Document:
    """Return what admission may change of a pod."""
    spec = pod["spec"]
    seen: Document = {"scheduler": spec.get("schedulerName", "")}
    for key in ("initContainers", "containers"):
        for container in spec.get(key) or ():
            resources = container.get("resources") or {}
            seen[container["name"]] = {
                "limits": resources.get("limits") or {},
                "requests": resources.get("requests") or {},
                "env": container.get("env") or [],
            }
    return seen
