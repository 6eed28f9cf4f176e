"""A screenshot of the demo as an SVG: the last view and the summary.

`scripts/record-demo` calls it. It shows a real run; only the seconds differ from run to run. The
file loads nothing from elsewhere: fonts are those of the reader.
"""

from __future__ import annotations

import asyncio
import io
import re
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT  # there is no public name for the template
from rich.console import Console

from hami_sandbox.demo import example, main, results, session, view
from hami_sandbox.demo.results import Outcome
from hami_sandbox.demo.running import Progress
from hami_sandbox.demo.snapshot import Snapshot

_WIDTH = 118
_PODS = 6
_NOTE = "<!-- Made by scripts/record-demo from a run of `hami demo`. Do not edit. -->\n"
_FONT_FACE = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)


def draw(snapshot: Snapshot, progress: Progress, outcome: Outcome) -> str:
    """Return the SVG."""
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True)
    console.print("$ make demo", style="bold", highlight=False)
    console.print(view.render(snapshot, progress, most_pods=_PODS))
    console.print(results.render(outcome))
    template = _FONT_FACE.sub("", CONSOLE_SVG_FORMAT)
    drawn = console.export_svg(title="hami demo", code_format=template, unique_id="hami-demo")
    # Editors remove trailing spaces; without them the file can be compared with a new one.
    return _NOTE + "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def record(path: Path) -> int:
    """Run the demo once and write its screenshot; return its exit code."""
    drawn: list[str] = []

    def keep(snapshot: Snapshot, progress: Progress, outcome: Outcome) -> None:
        drawn.append(draw(snapshot, progress, outcome))

    settings = session.Settings(
        plan=main.plan_fleet([], 0),
        examples=example.load(example.default_folder()),
        once=True,
        at_end=keep,
    )
    code = asyncio.run(session.Demo(settings, Console(highlight=False)).run())
    if code == 0:
        path.write_text(drawn[0], encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(record(Path(sys.argv[1])))
