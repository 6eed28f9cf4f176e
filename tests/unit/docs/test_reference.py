"""The generated pages of docs/reference name all of code, chart and map."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami.cli import main as command
from scripts.reference import __main__ as generator
from scripts.reference import architecture, cli, metrics, values

ROOT = Path(__file__).resolve().parents[3]


def test_a_page_that_differs_is_reported_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "PAGES", {"one.md": lambda _: "new\n", "two.md": lambda _: "2"})
    (tmp_path / "one.md").write_text("old\n")
    (tmp_path / "two.md").write_text("2")

    assert generator.main(["--check"], tmp_path) == 1
    assert capsys.readouterr().err == "docs/reference/one.md is not current; run `make docs`\n"
    assert (tmp_path / "one.md").read_text() == "old\n"

    assert generator.main([], tmp_path) == 0
    assert generator.main(["--check"], tmp_path) == 0


def test_the_map_lists_every_module() -> None:
    page = architecture.render(ROOT)
    modules = [
        path
        for source in architecture.SOURCES
        for path in (ROOT / source).rglob("*.py")
        if path.name != "__init__.py"
    ]
    assert modules
    assert [p for p in modules if f"](../../{p.relative_to(ROOT)}) | " not in page] == []


def test_the_commands_page_has_each_command_with_its_flags() -> None:
    page = cli.render(ROOT)
    for words in (*command.COMMANDS, *((name,) for name in command.ADDED)):
        assert f"\n## hami {' '.join(words)}\n" in page
    assert "| `--http_bind TEXT` | " in page
    assert str(Path.home()) not in page


def test_the_metrics_page_has_counted_and_hand_written_metrics(tmp_path: Path) -> None:
    page = metrics.render(ROOT)
    assert "| `hami_vgpu_memory_used_bytes` | gauge | `namespace`, `pod`, `container`, " in page
    assert "| `hami_gpu_memory_allocated_bytes` | gauge | `node`, " in page
    assert "| `gpu_webhook_errors_total` | counter | `kind` | " in page
    assert "| `hami_agent_prestart_duration_seconds` | histogram | `result` | " in page

    (tmp_path / "made.py").write_text('x = registry.gauge("name", "Some help.", ("a", "b"))')
    assert list(metrics.counted([tmp_path])) == [
        metrics.Family("name", "gauge", "Some help.", ("a", "b"))
    ]


def test_the_values_page_has_type_default_and_comment() -> None:
    page = values.render(ROOT)
    line = next(each for each in page.splitlines() if each.startswith("| `scheduler.replicas` "))
    assert line.startswith("| `scheduler.replicas` | integer | `1` | Number of replicas;")
    assert "| `fallback.mode` | `off`, `type`, `available` | `" in page
