"""Write the pages of docs/reference, or check that they are current (`--check`)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.reference import architecture, cli, metrics, values

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "architecture-map.md": architecture.render,
    "cli.md": cli.render,
    "metrics.md": metrics.render,
    "values.md": values.render,
}


def main(arguments: Sequence[str], folder: Path = ROOT / "docs/reference") -> int:
    """Write the pages; with --check write nothing and return 1 if one differs."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python -m scripts.reference [--check]\n")
        return 2
    code = 0
    for name, render in PAGES.items():
        path, wanted = folder / name, render(ROOT)
        if path.exists() and path.read_text("utf-8") == wanted:
            continue
        if arguments:
            sys.stderr.write(f"docs/reference/{name} is not current; run `make docs`\n")
            code = 1
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted, "utf-8")
            sys.stdout.write(f"wrote docs/reference/{name}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
