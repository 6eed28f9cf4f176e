"""The images of this project, built from handmade parts."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hami.image import oci, python, recipes, verify
from hami.image.errors import ImageError
from tests.unit.image import handmade as made
from tests.unit.image.handmade import FakeApt
from tests.unit.image.test_python_root import OURS, wheel

LIST = "[ \"$1\" = --list-full ] && printf 'bin/busybox\\nbin/sh\\nusr/bin/env\\nlinuxrc\\n'"


def quiet(_: str) -> None:
    pass


@pytest.fixture
def busybox(apt: FakeApt) -> FakeApt:
    apt.offer(
        "busybox-static_1_amd64.deb",
        made.deb(
            made.file("./bin/busybox", made.script(LIST), 0o755),
            made.file("./usr/share/doc/busybox-static/copyright", b"GPL-2"),
        ),
    )
    return apt


def content(image: Path, number: int = 0) -> dict[str, tarfile.TarInfo]:
    """Read the members of one layer of an archive."""
    digest = verify.archive(image).layers[number]
    with tarfile.open(image) as tar:
        blob = tar.extractfile(oci.blob_path(digest))
        with tarfile.open(fileobj=blob, mode="r:gz") as layer:
            return {member.name: member for member in layer}


def test_busybox_has_its_applets_accounts_and_licence(busybox: FakeApt, tmp_path: Path) -> None:
    out = tmp_path / "out/busybox.tar"
    lines: list[str] = []
    image = recipes.busybox(out, names=["busybox:1"], cache=tmp_path / "cache", say=lines.append)
    found = content(out)
    assert found["bin/busybox"].mode == 0o755
    assert found["bin/sh"].linkname == "../bin/busybox"
    assert found["usr/bin/env"].linkname == "../../bin/busybox"
    assert found["linuxrc"].linkname == "bin/busybox"
    assert found["tmp"].mode == 0o1777
    assert {"etc/passwd", "etc/group", "usr/share/doc/busybox-static/copyright"} <= set(found)
    assert image.config["config"]["Cmd"] == ["sh"]
    assert image == verify.archive(out)
    assert lines[-1].startswith("busybox.tar: docker.io/library/busybox:1, 0.0 MB, sha256:")


def test_pause_is_busybox_with_another_command(busybox: FakeApt, tmp_path: Path) -> None:
    shared: dict[str, Any] = {"cache": tmp_path / "cache", "say": quiet}
    box = recipes.busybox(tmp_path / "b.tar", names=["busybox:1"], **shared)
    pause = recipes.pause(tmp_path / "p.tar", names=["pause:1"], **shared)
    assert pause.layers == box.layers
    assert pause.config["config"]["Entrypoint"][:2] == ["/bin/sh", "-c"]
    assert pause.config["config"]["User"] == "65535:65535"


def test_who_builds_where_changes_no_byte(busybox: FakeApt, tmp_path: Path) -> None:
    first = tmp_path / "first.tar"
    recipes.busybox(first, names=["busybox:1"], cache=tmp_path / "cache", say=quiet)
    second = tmp_path / "elsewhere/second.tar"
    before = os.umask(0o077)
    try:
        recipes.busybox(second, names=["busybox:1"], cache=tmp_path / "other", say=quiet)
    finally:
        os.umask(before)
    assert first.read_bytes() == second.read_bytes()


def test_a_failed_build_leaves_the_image_before_it(busybox: FakeApt, tmp_path: Path) -> None:
    out = tmp_path / "out/busybox.tar"
    recipes.busybox(out, names=["busybox:1"], cache=tmp_path / "cache", say=quiet)
    good = out.read_bytes()
    with pytest.raises(ImageError, match="is not"):
        recipes.busybox(out, names=["Busybox"], cache=tmp_path / "cache", say=quiet)
    assert out.read_bytes() == good
    assert [path.name for path in out.parent.iterdir()] == ["busybox.tar"]


def test_a_busybox_that_does_not_run_is_an_error(apt: FakeApt, tmp_path: Path) -> None:
    program = made.file("./bin/busybox", made.script("echo broken >&2; exit 1"), 0o755)
    licence = made.file("./usr/share/doc/busybox-static/copyright")
    apt.offer("busybox-static_1_amd64.deb", made.deb(program, licence))
    with pytest.raises(ImageError, match="does not run here: 'broken'"):
        recipes.busybox(tmp_path / "x.tar", names=["b:1"], cache=tmp_path / "cache", say=quiet)


def test_what_the_file_system_refuses_is_an_image_error(apt: FakeApt, tmp_path: Path) -> None:
    apt.offer("busybox-static_1_amd64.deb", made.deb(made.file("./other")))
    with pytest.raises(ImageError, match=r"building the image busybox: failed .*bin/busybox"):
        recipes.busybox(tmp_path / "x.tar", names=["b:1"], cache=tmp_path / "cache", say=quiet)


MACHINE = {"amd64": 62, "arm64": 183}[oci.architecture()]


def test_kube_scheduler_is_its_binary_and_runs_without_privileges(tmp_path: Path) -> None:
    binary = tmp_path / "kube-scheduler"
    binary.write_bytes(made.elf(machine=MACHINE))
    binary.chmod(0o700)
    image = recipes.kube_scheduler(
        tmp_path / "k.tar",
        names=["kube-scheduler:v1.36.3"],
        binary=binary,
        version="1.36.3",
        cache=tmp_path / "cache",
        say=quiet,
    )
    config = image.config["config"]
    assert config["Entrypoint"] == ["/usr/local/bin/kube-scheduler"]
    assert config["User"] == "65532:65532"
    assert config["Labels"]["org.opencontainers.image.version"] == "1.36.3"
    assert content(tmp_path / "k.tar")["usr/local/bin/kube-scheduler"].mode == 0o755


def test_a_dynamic_kube_scheduler_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "kube-scheduler"
    binary.write_bytes(made.elf(["libc.so.6"], loader=True, machine=MACHINE))
    with pytest.raises(ImageError, match=r"is linked dynamically.*CGO_ENABLED=0"):
        recipes.kube_scheduler(
            tmp_path / "k.tar",
            names=["k:1"],
            binary=binary,
            version="1",
            cache=tmp_path / "cache",
            say=quiet,
        )


class Bench:
    """What `recipes.hami` needs, with the two steps that need real tools replaced."""

    def __init__(self, apt: FakeApt, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.installed = 0
        self.files = dict(OURS)
        apt.offer(
            "python3-minimal_3.11_all.deb",
            made.deb(
                made.link("./usr/bin/python3", "python3.11"),
                made.file("./usr/bin/python3.11", b"", 0o755),
            ),
        )
        for name in ("runtime.txt", "uv"):
            (folder / name).write_text("")
        patch.setattr(python, "install", self._install)
        patch.setattr(python, "compile_all", lambda folder, interpreter: None)

    def _install(self, root: Path, requirements: Path, *, uv: Path, interpreter: Path) -> None:
        self.installed += 1
        (python.site(root, interpreter) / "numpy").mkdir(parents=True)

    def build(self) -> verify.Image:
        return recipes.hami(
            self.folder / "hami.tar",
            names=["hami:dev"],
            wheel=wheel(self.folder / "w", self.files),
            requirements=self.folder / "runtime.txt",
            uv=self.folder / "uv",
            cache=self.folder / "cache",
            say=quiet,
        )


@pytest.fixture
def bench(apt: FakeApt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(apt, tmp_path, monkeypatch)


def test_hami_has_debian_below_dependencies_below_our_code(bench: Bench) -> None:
    image = bench.build()
    out = bench.folder / "hami.tar"
    site = "usr/local/lib/python3.11/dist-packages"
    assert "usr/bin/python3.11" in content(out, 0)
    assert f"{site}/numpy" in content(out, 1)
    assert f"{site}/hami/__init__.py" in content(out, 2)
    assert [entry["created_by"] for entry in image.config["history"]] == [
        "Debian base-files ca-certificates libpython3-stdlib libstdc++6 python3-minimal",
        "python runtime.txt",
        "python hami-0.1.0-py3-none-any.whl",
    ]
    assert image.config["config"]["User"] == "65532:65532"
    assert "LANG=C.UTF-8" in image.config["config"]["Env"]


def test_the_image_is_labelled_with_the_version_of_the_wheel(bench: Bench) -> None:
    labels = bench.build().config["config"]["Labels"]
    assert labels["org.opencontainers.image.version"] == "0.1.0"


def test_a_change_of_our_code_changes_only_the_last_layer(bench: Bench) -> None:
    before = bench.build().layers
    bench.files["hami/new.py"] = "x = 1\n"
    after = bench.build().layers
    assert after[:2] == before[:2]
    assert after[2] != before[2]
    assert bench.installed == 1


def test_other_requirements_change_the_dependencies(bench: Bench) -> None:
    bench.build()
    (bench.folder / "runtime.txt").write_text("numpy==2\n")
    bench.build()
    assert bench.installed == 2


def test_the_entry_point_is_hami_as_soon_as_there_is_one(bench: Bench) -> None:
    assert bench.build().config["config"]["Entrypoint"] == ["/usr/bin/python3"]
    bench.files["hami/__main__.py"] = ""
    config = bench.build().config["config"]
    assert config["Entrypoint"] == ["/usr/bin/python3", "-m", "hami"]


def test_an_extension_without_its_library_is_refused(bench: Bench) -> None:
    def install(root: Path, requirements: Path, *, uv: Path, interpreter: Path) -> None:
        site = python.site(root, interpreter)
        site.mkdir(parents=True)
        (site / "fast.so").write_bytes(made.elf(["libstdc++.so.6"]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python, "install", install)
        with pytest.raises(
            ImageError, match=r"libstdc\+\+\.so\.6: is not in the image, but .*fast"
        ):
            bench.build()


@pytest.mark.parametrize("missing", ["uv", "runtime.txt"])
def test_a_missing_part_is_an_error_before_the_build(bench: Bench, missing: str) -> None:
    (bench.folder / missing).unlink()
    with pytest.raises(ImageError, match="is no file; build it or give its path"):
        bench.build()
