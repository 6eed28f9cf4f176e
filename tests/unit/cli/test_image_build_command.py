"""`hami image build`: from a checkout, from given parts, and without them."""

from __future__ import annotations

import platform
import shutil
import tomllib
from pathlib import Path

import pytest

import hami
from hami.cli import image, main
from hami.image import verify
from tests.unit.image import handmade
from tests.unit.image.test_python_root import OURS, wheel
from tests.unit.image.test_recipes import Bench, content

ROOT = Path(__file__).parents[3]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Have Debian's packages handmade, and no dependency installed."""
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    apt = handmade.FakeApt(tmp_path / "fake-apt")
    monkeypatch.setenv("PATH", f"{apt.home / 'bin'}:/usr/bin:/bin")
    return Bench(apt, tmp_path, monkeypatch)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have hami lie where an installer puts it, and no uv anywhere."""
    monkeypatch.setattr(hami, "__path__", [str(tmp_path / "lib/site-packages/hami")])
    monkeypatch.setenv("PATH", str(tmp_path / "fake-apt/bin"))


def given(bench: Bench) -> list[str]:
    return [
        f"--wheel={wheel(bench.folder / 'w', OURS)}",
        f"--requirements={bench.folder / 'runtime.txt'}",
        f"--uv={bench.folder / 'uv'}",
    ]


def run(capsys: pytest.CaptureFixture[str], bench: Bench, *words: str) -> tuple[int, str, str]:
    code = main.main(["image", "build", f"--output={bench.folder / 'hami.tar'}", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_from_a_checkout_only_the_output_is_needed(
    capsys: pytest.CaptureFixture[str], bench: Bench
) -> None:
    code, out, err = run(capsys, bench, f"--uv={bench.folder / 'uv'}")
    assert (code, err) == (0, "")
    archive = bench.folder / "hami.tar"
    assert verify.archive(archive).names == (f"docker.io/library/hami:{VERSION}",)
    site = "usr/local/lib/python3.11/dist-packages"
    ours = content(archive, 2)
    assert f"{site}/hami/cli/image.py" in ours
    assert f"{site}/hami/lib/{platform.machine()}/libvgpu.so" in ours
    assert not [name for name in ours if "sandbox" in name or "fakegpu" in name]
    first, *_, last = out.splitlines()
    assert first == f"building the wheel of {ROOT}"
    assert last.startswith(f"hami.tar: docker.io/library/hami:{VERSION}, ")
    assert list((bench.folder / "home/hami/images").iterdir())


@pytest.mark.usefixtures("installed")
def test_from_given_parts_it_needs_no_checkout(
    capsys: pytest.CaptureFixture[str], bench: Bench
) -> None:
    names = ["--name=registry.example/hami:1", "--name=hami:1"]
    cache = f"--cache={bench.folder / 'kept'}"
    code, _, err = run(capsys, bench, *given(bench), *names, cache)
    assert (code, err) == (0, "")
    found = verify.archive(bench.folder / "hami.tar").names
    assert found == ("registry.example/hami:1", "docker.io/library/hami:1")
    assert (bench.folder / "kept/layers").is_dir()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("dropped", [0, 1])
def test_outside_a_checkout_wheel_and_requirements_must_be_given(
    capsys: pytest.CaptureFixture[str], bench: Bench, dropped: int
) -> None:
    words = given(bench)
    del words[dropped]
    code, out, err = run(capsys, bench, *words)
    assert (code, out) == (2, "")
    assert "give both --wheel=FILE and --requirements=FILE, or run it from a checkout" in err


@pytest.mark.usefixtures("installed")
def test_uv_is_looked_for_on_the_path(
    capsys: pytest.CaptureFixture[str], bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = given(bench)[:2]
    code, _, err = run(capsys, bench, *words)
    assert code == 2
    assert "uv installs the dependencies into the image and is not on the PATH" in err
    (bench.folder / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bench.folder / 'fake-apt/bin'}:{bench.folder}")
    assert run(capsys, bench, *words)[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--name=Hami"], 1, "image name 'Hami': is not [host/]path:tag in small letters"),
        (["--requirements=/none"], 1, "requirements '/none': is no file; build it or give its"),
        (["--wheel=/none/hami-1-py3-none-any.whl"], 1, "is no file; build it or give its path"),
        (["more"], 2, "unrecognized arguments: more"),
    ],
)
def test_what_prevents_it_is_one_line_and_a_code(
    capsys: pytest.CaptureFixture[str], bench: Bench, words: list[str], code: int, message: str
) -> None:
    found, _, err = run(capsys, bench, *given(bench), *words)
    assert found == code
    assert err.startswith("hami image build: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_checkout_that_does_not_build_is_reported(
    capsys: pytest.CaptureFixture[str], bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = bench.folder / "checkout"
    (checkout / "requirements").mkdir(parents=True)
    shutil.copy(ROOT / "requirements/runtime.txt", checkout / "requirements/runtime.txt")
    (checkout / "pyproject.toml").write_text("[project]\nname = 'hami'\n")
    monkeypatch.setattr(hami, "__path__", [str(checkout / "src/hami")])
    code, _, err = run(capsys, bench, f"--uv={bench.folder / 'uv'}")
    assert code == 1
    assert f"in {checkout} failed: " in err
    assert "run `make setup` in the checkout" in err
    assert err.count("\n") == 1


def test_the_output_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["image", "build"]) == 2
    assert "required: --output" in capsys.readouterr().err


def test_packages_are_kept_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    assert image.default_cache() == Path("/home/me/.cache/hami/images")
