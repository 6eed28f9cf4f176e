"""Dependencies and our wheel go where Debian's Python finds them."""

from __future__ import annotations

import json
import os
import platform
import sys
import zipfile
from pathlib import Path

import pytest

from hami.image import python
from hami.image.errors import ImageError
from tests.unit.image import handmade as made

SITE = "usr/local/lib/python3.11/dist-packages"


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    root = tmp_path / "interpreter"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/python3").symlink_to("python3.11")
    return root


def wheel(folder: Path, files: dict[str, str], name: str = "hami-0.1.0-py3-none-any.whl") -> Path:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as packed:
        for path, text in files.items():
            packed.writestr(path, text)
    return folder / name


OURS = {
    "hami/__init__.py": "",
    "hami/py.typed": "",
    "hami-0.1.0.dist-info/RECORD": "hami/__init__.py,,\nhami-0.1.0.dist-info/RECORD,,\n",
}


def test_the_version_is_read_from_debians_link(interpreter: Path) -> None:
    assert python.version(interpreter) == "3.11"
    assert python.site(Path("/r"), interpreter) == Path("/r", SITE)
    (interpreter / "usr/bin/python3").unlink()
    with pytest.raises(ImageError, match=r"is no link to python3\.N; unpack python3-minimal"):
        python.version(interpreter)


def test_our_wheel_is_unzipped_with_plain_modes(tmp_path: Path, interpreter: Path) -> None:
    before = os.umask(0o077)
    try:
        python.unzip(tmp_path / "r", wheel(tmp_path / "w", OURS), interpreter=interpreter)
    finally:
        os.umask(before)
    seen = made.whole(tmp_path / "r")
    assert seen[f"{SITE}/hami/py.typed"] == "644 "
    assert seen[f"{SITE}/hami"] == "755 folder"
    assert seen["usr/local"] == "755 folder"


def test_whether_there_is_a_command_line_is_read_from_the_wheel(tmp_path: Path) -> None:
    assert not python.has_command(wheel(tmp_path / "a", OURS))
    assert python.has_command(wheel(tmp_path / "b", {**OURS, "hami/__main__.py": ""}))
    assert python.wheel_version(tmp_path / "a/hami-0.1.0-py3-none-any.whl") == "0.1.0"


@pytest.mark.parametrize("name", ["../out", "/abs", "hami-0.1.0.data/scripts/x", "a/../../b"])
def test_a_wheel_that_writes_elsewhere_is_refused(
    tmp_path: Path, interpreter: Path, name: str
) -> None:
    with pytest.raises(ImageError, match="lies outside the package"):
        python.unzip(tmp_path / "r", wheel(tmp_path / "w", {name: ""}), interpreter=interpreter)


@pytest.mark.parametrize(
    "platforms", ["any", "manylinux_2_17_{0}", "manylinux_2_17_{0}.manylinux_2_17_other"]
)
def test_a_wheel_for_this_machine_brings_its_libraries(
    tmp_path: Path, interpreter: Path, platforms: str
) -> None:
    name = f"hami-0.1.0-py3-none-{platforms.format(platform.machine())}.whl"
    files = {**OURS, "hami/native/lib/x/libvgpu.so": "bytes"}
    python.unzip(tmp_path / "r", wheel(tmp_path / "w", files, name=name), interpreter=interpreter)
    assert made.whole(tmp_path / "r")[f"{SITE}/hami/native/lib/x/libvgpu.so"] == "644 bytes"
    assert python.wheel_version(Path(name)) == "0.1.0"


@pytest.mark.parametrize(
    "name",
    [
        "hami.whl",
        "numpy-2-cp311-cp311-linux_x86_64.whl",
        "x.zip",
        "hami-0.1.0-py3-none-manylinux_2_17_other.whl",
    ],
)
def test_a_wheel_for_something_else_is_refused(
    tmp_path: Path, interpreter: Path, name: str
) -> None:
    with pytest.raises(ImageError, match="build it with HAMI_NATIVE_ARCHES="):
        python.unzip(
            tmp_path / "r", wheel(tmp_path / "w", OURS, name=name), interpreter=interpreter
        )


def test_a_damaged_wheel_is_an_error(tmp_path: Path, interpreter: Path) -> None:
    path = tmp_path / "hami-0.1.0-py3-none-any.whl"
    path.write_bytes(b"no zip")
    with pytest.raises(ImageError, match=r"cannot be read .* build it again"):
        python.unzip(tmp_path / "r", path, interpreter=interpreter)


_UV = f"""\
#!{sys.executable}
import json, pathlib, sys
target = pathlib.Path(sys.argv[sys.argv.index("--target") + 1])
files = {{
    ".lock": "", "bin/f2py": "", "numpy/__init__.py": "", "numpy/__init__.pyi": "",
    "numpy/core/tests/data/x.bin": "", "numpy/core/tests/__init__.py": "", "tests/x.py": "",
    "numpy-2.dist-info/INSTALLER": "uv", "numpy-2.dist-info/uv_cache.json": "now",
    "numpy-2.dist-info/RECORD": "numpy/__init__.pyi,,\\nnumpy/__init__.py,,\\nbin/f2py,,\\n",
    "arguments": json.dumps(sys.argv[1:]),
}}
for name, text in files.items():
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    (target / name).write_text(text)
"""


def test_dependencies_are_installed_locked_and_cleaned_up(
    tmp_path: Path, interpreter: Path
) -> None:
    uv = tmp_path / "uv"
    uv.write_text(_UV)
    uv.chmod(0o755)
    (tmp_path / "runtime.txt").write_text("")
    root = tmp_path / "r"
    python.install(root, tmp_path / "runtime.txt", uv=uv, interpreter=interpreter)
    site = root / SITE
    arguments = json.loads((site / "arguments").read_text())
    (site / "arguments").unlink()
    assert {"--require-hashes", "--no-deps", "--no-compile-bytecode"} <= set(arguments)
    assert arguments[arguments.index("--only-binary") + 1] == ":all:"
    assert arguments[arguments.index("--python-version") + 1] == "3.11"
    seen = made.whole(site)
    assert seen == {
        "numpy": "755 folder",
        "numpy/__init__.py": "644 ",
        "numpy/core": "755 folder",
        "numpy-2.dist-info": "755 folder",
        "numpy-2.dist-info/RECORD": "644 numpy/__init__.py,,\n",
        "tests": "755 folder",
        "tests/x.py": "644 ",
    }, "a package called tests is a package; the tests of one are not needed"


def test_an_installer_that_fails_is_an_error_without_hosts(
    tmp_path: Path, interpreter: Path
) -> None:
    uv = tmp_path / "uv"
    uv.write_bytes(
        made.script("echo 'Failed to fetch: https://index.example/simple/x/' >&2; exit 2")
    )
    uv.chmod(0o755)
    (tmp_path / "runtime.txt").write_text("")
    with pytest.raises(ImageError, match="uv: failed: Failed to fetch: https://MIRROR/simple/x/"):
        python.install(tmp_path / "r", tmp_path / "runtime.txt", uv=uv, interpreter=interpreter)
    uv.chmod(0o644)
    with pytest.raises(ImageError, match="uv: does not start"):
        python.install(tmp_path / "r", tmp_path / "runtime.txt", uv=uv, interpreter=interpreter)


def test_a_root_without_libc_cannot_compile(tmp_path: Path, interpreter: Path) -> None:
    with pytest.raises(ImageError, match="has no libc; unpack libc6 into it"):
        python.compile_all(tmp_path, interpreter=interpreter)


def test_the_images_own_interpreter_compiles_through_its_own_loader(
    tmp_path: Path, interpreter: Path
) -> None:
    libraries = interpreter / "usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    (libraries / "libc.so.6").write_text("")
    loader = libraries / "ld-linux-x86-64.so.2"
    loader.write_bytes(made.script('echo "$PYTHONHOME $PYTHONHASHSEED $*" > "$PWD/ran"'))
    loader.chmod(0o755)
    (tmp_path / "code").mkdir()
    before = os.umask(0o077)
    try:
        python.compile_all(tmp_path / "code", interpreter=interpreter)
    finally:
        os.umask(before)
    ran = (tmp_path / "code/ran").read_text()
    assert (tmp_path / "code/ran").stat().st_mode & 0o777 == 0o644, "any user may read it"
    assert ran.startswith(f"{interpreter}/usr 0 --library-path {libraries} ")
    assert f"{interpreter}/usr/bin/python3.11 " in ran
    assert "--invalidation-mode unchecked-hash" in ran


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("usr/lib/x86_64-linux-gnu/gconv/IBM037.so", True),
        ("usr/lib/python3.11/test/support.py", True),
        ("usr/lib/python3.11/lib-dynload/_sqlite3.cpython-311-x86_64-linux-gnu.so", True),
        ("usr/share/man/man1/python3.1", True),
        ("usr/bin/openssl", True),
        ("usr/bin/python3.11", False),
        ("usr/lib/python3.11/asyncio/events.py", False),
        ("usr/lib/python3.11/lib-dynload/_ssl.cpython-311-x86_64-linux-gnu.so", False),
        ("usr/lib/python3.11/testing.py", False),
        ("usr/lib/ssl/openssl.cnf", False),
    ],
)
def test_what_no_container_needs_is_left_out(name: str, left_out: bool) -> None:
    assert python.useless(name) is left_out
