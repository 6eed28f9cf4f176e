"""The API server's audit log from a mark on: writers, writes, answers.

Reads (get, list, watch) are not in it. Pods, their subresources and nodes stand there with their
contents, everything else without. The log is written as requests end, so whoever needs all of
them waits for the count that must come.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.e2e.cluster.cluster import Cluster
from tests.e2e.install import identity

GOOD = range(200, 300)


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    id: str
    """What the writer sent as `Audit-ID`, or the server's own."""
    received: float
    """Seconds since 1970, as all clocks here."""
    verb: str
    user: str
    agent: str
    address: str
    resource: str
    """With its subresource: `pods/binding`."""
    namespace: str
    name: str
    code: int
    sent: dict[str, Any]
    """What was written; empty where the log keeps no contents."""

    @property
    def good(self) -> bool:
        return self.code in GOOD


@dataclasses.dataclass(frozen=True)
class Mark:
    """A place in the log, also when the API server has begun a new file since."""

    log: Path
    inode: int
    offset: int

    def entries(self) -> list[Entry]:
        """Read all that ended after the mark."""
        found: list[Entry] = []
        for path in self._files():
            with path.open("rb") as file:
                if path.stat().st_ino == self.inode:
                    file.seek(self.offset)
                lines = file.read().split(b"\n")
            # The last line may still be in the making.
            found += [_entry(json.loads(line)) for line in lines[:-1]]
        return sorted(found, key=lambda entry: entry.received)

    def bindings(self, namespace: str) -> list[Entry]:
        """Read every attempt to bind a pod of the namespace, in the order of arrival."""
        return [
            entry
            for entry in self.entries()
            if entry.resource == "pods/binding" and entry.namespace == namespace
        ]

    def _files(self) -> list[Path]:
        """List the marked file and the newer ones, oldest first."""
        logs = self.log.parent.glob(f"{self.log.stem}*{self.log.suffix}")
        files = sorted(logs, key=lambda path: path.stat().st_mtime_ns)
        inodes = [path.stat().st_ino for path in files]
        return files[inodes.index(self.inode) :]


def mark(cluster: Cluster) -> Mark:
    log = cluster.layout.audit_log
    status = log.stat()
    return Mark(log, status.st_ino, status.st_size)


def ours(entries: Iterable[Entry]) -> list[Entry]:
    """Keep what `hami scheduler` wrote."""
    return [entry for entry in entries if entry.user == identity.USER]


def writes_per_pod(entries: Iterable[Entry], namespace: str) -> Counter[str]:
    """Count our writes to each pod of a namespace, whatever the answer; events apart."""
    return Counter(
        entry.name
        for entry in ours(entries)
        if entry.namespace == namespace and entry.resource.split("/")[0] == "pods"
    )


def events(entries: Iterable[Entry], namespace: str) -> list[Entry]:
    """Keep our events about objects of a namespace."""
    return [e for e in ours(entries) if e.resource == "events" and e.namespace == namespace]


def _entry(line: dict[str, Any]) -> Entry:
    what = line.get("objectRef", {})
    parts = [what.get("resource", ""), what.get("subresource", "")]
    return Entry(
        id=line["auditID"],
        received=dt.datetime.fromisoformat(line["requestReceivedTimestamp"]).timestamp(),
        verb=line["verb"],
        user=line["user"].get("username", ""),
        agent=line.get("userAgent", ""),
        address=(line.get("sourceIPs") or [""])[0],
        resource="/".join(part for part in parts if part),
        namespace=what.get("namespace", ""),
        name=what.get("name", ""),
        code=line.get("responseStatus", {}).get("code", 0),
        sent=line.get("requestObject") or {},
    )
