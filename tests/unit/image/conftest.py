"""Fixtures of the image builder's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.image import handmade


@pytest.fixture(autouse=True)
def _no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> handmade.FakeApt:
    fake = handmade.FakeApt(tmp_path / "fake-apt")
    monkeypatch.setenv("PATH", f"{fake.home / 'bin'}:/usr/bin:/bin")
    return fake
