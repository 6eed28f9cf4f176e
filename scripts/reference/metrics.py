"""The page of metrics: those of each process, with type, help and labels.

Metrics that a process counts are calls of `serving.metrics.Registry`, which are read from the
source: name, help and labels are literals there. Hand-written families are rendered from samples.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import parser

from hami.serving.metrics import Registry
from scripts.reference import markdown, samples

INTRO = """\
Names and labels are HAMi's where HAMi has the metric. `hami_vgpu_memory_used_bytes` of the monitor
is the memory that a container uses. Metrics of cards and containers also have `zone="vGPU"`."""

_KINDS = ("counter", "gauge", "histogram")
_ZONE = "zone"
#: Processes: title, and the folders whose calls belong to it.
PROCESSES = (
    ("Scheduler: the process", ("scheduler",)),
    ("Admission: in the scheduler and in `hami webhook`", ("admission",)),
    ("Agent", ("agent",)),
    ("Monitor: the process", ("monitor",)),
)


@dataclass(frozen=True)
class Family:
    """One metric."""

    name: str
    kind: str
    help: str
    #: None: it has no sample, so its labels are not known.
    labels: tuple[str, ...] | None

    def row(self) -> tuple[str, ...]:
        """Return its cells in the table."""
        labels = "no sample in this version"
        if self.labels is not None:
            labels = ", ".join(map(markdown.code, self.labels))
        name = f"{self.name}_total" if self.kind == "counter" else self.name
        return markdown.code(name), self.kind, labels, self.help


def render(root: Path) -> str:
    """Return the page."""
    parts = list(_section("Every process", rendered(_registry_text())))
    for title, folders in PROCESSES:
        found = counted([root / "src/hami" / folder for folder in folders])
        parts += _section(title, sorted(found, key=lambda family: family.name))
    for title, text, old in (
        ("Scheduler: the cluster", samples.cluster_text, "--legacy-metrics"),
        ("Monitor: the node", samples.node_text, "--legacy-metrics"),
    ):
        new = list(rendered(text(legacy=False)))
        parts += _section(title, new)
        more = [each for each in rendered(text(legacy=True)) if each not in new]
        parts += _section(f"{title}, old names (`{old}`)", more)
    return markdown.page("Metrics", INTRO, parts)


def counted(folders: Iterable[Path]) -> Iterator[Family]:
    """Yield the metrics that modules below these folders make in a registry."""
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    kind, values = node.func.attr, node.args
                    if kind in _KINDS and len(values) > 1 and isinstance(values[0], ast.Constant):
                        yield _family(kind, values)


def _family(kind: str, values: Sequence[ast.expr]) -> Family:
    name, text, *labels = (ast.literal_eval(value) for value in values)
    return Family(name, kind, text, tuple(labels[0]) if labels else ())


def rendered(text: str) -> Iterator[Family]:
    """Yield the families of a text in Prometheus' format."""
    for family in parser.text_string_to_metric_families(text):
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels)
        labels.pop(_ZONE, None)
        shown = tuple(labels) if family.samples else None
        yield Family(family.name, family.type, family.documentation, shown)


def _registry_text() -> str:
    registry = Registry()
    registry.build_info(version="0")
    return b"".join(registry.render()).decode()


def _section(title: str, families: Iterable[Family]) -> Iterator[str]:
    rows = [family.row() for family in families]
    if rows:
        yield f"## {title}"
        yield markdown.table(("metric", "type", "labels", "meaning"), rows)
