"""Built files can be loaded on every target, and bring nothing else."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from hami.node import layout
from native import build
from tests.native import building
from tests.native.elf import Library

ENTRY_POINTS = (build.SOURCES / "libvgpu/entry_points.def").read_text()
HOOKS = set(re.findall(r"^(?:NVML_)?HOOK\((\w+),", ENTRY_POINTS, re.MULTILINE))
LIBVGPUS = (build.LIBVGPU, build.LIBVGPU_BESIDE, build.LIBVGPU_TEST)
LIBRARIES = [product for product in build.PRODUCTS if product.shared]
MACHINES = {"x86_64": 62, "aarch64": 183}
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}


def library(arch: str, product: build.Product) -> Library:
    return Library(building.all_current(arch) / product.name)


both = pytest.mark.parametrize("arch", build.ARCHES)
every = pytest.mark.parametrize("product", LIBRARIES, ids=lambda product: product.soname)


@both
@every
def test_nothing_newer_than_glibc_2_17_is_asked_for(arch: str, product: build.Product) -> None:
    made = library(arch, product)
    assert made.machine == MACHINES[arch]
    assert made.versions, "a library that needs no libc was not linked"
    for version in made.versions:
        found = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version)
        assert found is not None, version
        assert (int(found[1]), int(found[2])) <= (2, 17), version
    assert made.needed <= {"libc.so.6", "libpthread.so.0", "libdl.so.2", LOADERS[arch]}
    assert made.soname == product.soname


@both
@every
def test_loading_changes_nothing_in_the_process(arch: str, product: build.Product) -> None:
    made = library(arch, product)
    assert not made.executable_stack
    assert not made.text_relocations
    assert not made.binds_at_once, "a symbol that a libc lacks would end every process"
    assert made.constructors == 0


@both
@pytest.mark.parametrize("product", LIBVGPUS, ids=lambda product: product.soname)
def test_libvgpu_exports_its_hooks_and_the_linkers_doors_only(
    arch: str, product: build.Product
) -> None:
    assert len(HOOKS) > 50
    assert library(arch, product).exports == HOOKS | {"dlsym", "dlvsym", "dlopen", "dlmopen"}


@both
def test_the_stand_in_exports_driver_names_only(arch: str) -> None:
    cuda, nvml = library(arch, build.LIBCUDA).exports, library(arch, build.LIBNVML).exports
    assert [name for name in cuda if not re.match(r"cu[A-Z]|fakegpu_", name)] == []
    assert [name for name in nvml if not re.match(r"nvml[A-Z]|fakegpu_", name)] == []
    named = re.findall(r"^(NVML_)?(?:HOOK|NEED)\((\w+),", ENTRY_POINTS, re.MULTILINE)
    missing = [name for kind, name in named if name not in (nvml if kind else cuda)]
    assert missing == []


@both
def test_only_the_test_build_can_be_killed_on_order(arch: str) -> None:
    folder = building.all_current(arch)
    able = {
        product: b"VGPU_KILL_AT" in (folder / product.name).read_bytes() for product in LIBVGPUS
    }
    assert able == {build.LIBVGPU: False, build.LIBVGPU_BESIDE: False, build.LIBVGPU_TEST: True}


@both
def test_the_product_knows_one_place_for_the_agents_files(arch: str) -> None:
    """A build that looks beside itself could be preloaded from a folder of the tenant's."""
    made = library(arch, build.LIBVGPU)
    content = (building.all_current(arch) / build.LIBVGPU.name).read_bytes()
    assert not {"dladdr", "dladdr1", "dlinfo"} & made.imports
    assert b"/proc/self/maps" not in content
    assert b"/proc/self/exe" not in content
    assert layout.SHARE.encode() in content
    beside = building.all_current(arch) / build.LIBVGPU_BESIDE.name
    assert "dladdr" in library(arch, build.LIBVGPU_BESIDE).imports
    assert layout.SHARE.encode() not in beside.read_bytes()


def test_no_name_of_the_building_machine_is_in_the_product() -> None:
    for arch, product in itertools.product(
        build.ARCHES, [product for product in build.PRODUCTS if product.package]
    ):
        content = (building.all_current(arch) / product.name).read_bytes()
        assert str(build.ROOT).encode() not in content, product.name


def test_a_current_product_is_not_built_again(tmp_path: Path) -> None:
    said: list[str] = []
    compiler = build.zig(build.own_arch(), tmp_path)
    first = compiler.make(build.LIBNVML, said.append)
    identity = first.stat().st_ino
    assert compiler.make(build.LIBNVML, said.append).stat().st_ino == identity
    first.unlink()
    assert compiler.make(build.LIBNVML, said.append).is_file()
    assert len(said) == 2


def test_what_does_not_compile_is_told_and_leaves_the_old_product(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "native"
    (sources / "include").mkdir(parents=True)
    (sources / "one").mkdir()
    monkeypatch.setattr(build, "SOURCES", sources)
    product = build.Product("libone.so", "one", ("*.c",))
    compiler = build.zig(build.own_arch(), tmp_path / "out")
    with pytest.raises(build.BuildError, match=re.escape("libone.so: no *.c in native/one")):
        build.build([compiler], [product])
    (sources / "one/one.c").write_text("int one(void);\nint one(void) { return 1; }\n")
    build.build([compiler], [product], say=lambda _: None)
    before = (tmp_path / "out/libone.so").read_bytes()
    (sources / "one/one.c").write_text("int one(void) { return unknown; }\n")
    with pytest.raises(build.BuildError, match=r"(?s)libone\.so for .*undeclared identifier"):
        build.build([compiler], [product], say=lambda _: None)
    assert (tmp_path / "out/libone.so").read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        ".made-from",
        "libone.so",
    ]


def wheel(distribution: str, folder: Path, arches: str) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=build.ROOT / distribution,
        env={**os.environ, "HAMI_NATIVE_ARCHES": arches},
        check=True,
        capture_output=True,
    )
    [made] = folder.glob("*.whl")
    return made


@pytest.mark.parametrize(
    ("arches", "tag", "inside"),
    [
        ("", f"manylinux_2_17_{build.own_arch()}", [build.own_arch()]),
        (
            "x86_64,aarch64",
            "manylinux_2_17_aarch64.manylinux_2_17_x86_64",
            ["aarch64", "x86_64"],
        ),
    ],
)
@pytest.mark.parametrize("package", ["hami", "hami_sandbox"])
def test_a_wheel_has_its_own_package_and_libraries_and_says_so(
    tmp_path: Path, arches: str, tag: str, inside: list[str], package: str
) -> None:
    for arch in inside:
        building.all_current(arch)
    made = wheel("." if package == "hami" else "sandbox", tmp_path, arches)
    assert made.name.endswith(f"-py3-none-{tag}.whl")
    with zipfile.ZipFile(made) as packed:
        names = packed.namelist()
        found = {name for name in names if "/lib/" in name}
        for name in found:
            path = build.LIBRARIES / Path(name).relative_to(f"{package}/lib")
            assert packed.read(name) == path.read_bytes()
    assert found == {
        f"{package}/lib/{arch}/{product.name}"
        for arch in inside
        for product in build.PRODUCTS
        if product.package == package
    }
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {package}
    assert not [name for name in names if "sandbox" in name or "fakegpu" in name] or (
        package == "hami_sandbox"
    )


def test_the_source_archive_has_what_they_are_built_from(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)],
        cwd=build.ROOT,
        check=True,
        capture_output=True,
    )
    [made] = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    sources = {
        path.relative_to(build.ROOT).as_posix()
        for path in build.SOURCES.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
        if not path.is_relative_to(build.LIBRARIES)
    }
    assert sources <= names
    assert {"hatch_build.py", "pyproject.toml", "src/hami/agent/containers/library.py"} <= names
    assert not [name for name in names if ".so" in name]


def test_an_editable_install_compiles_nothing(tmp_path: Path) -> None:
    program = (
        "import sys; from hatchling.builders.wheel import WheelBuilder;"
        "print(*WheelBuilder(sys.argv[1]).build(directory=sys.argv[2], versions=['editable']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(build.ROOT), str(tmp_path)],
        env={**os.environ, "HAMI_NATIVE_ARCHES": "none-such"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip().endswith("-py3-none-any.whl")
