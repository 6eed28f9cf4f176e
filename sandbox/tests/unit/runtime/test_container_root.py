"""A container with a root of its own: files it sees, files it cannot change."""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path

import pytest

from hami_sandbox.runtime import kernel, programs
from hami_sandbox.runtime.launch import LaunchError, launch
from hami_sandbox.runtime.records import BUNDLE, Bundle
from hami_sandbox.runtime.spec import Mount
from sandbox.tests.unit.runtime.bench import Bench

NOBODY = 65534
SOURCE = Path(os.__file__).read_text().splitlines()
#: In a folder with files, folders and links.
LIBRARY = Path(os.__file__)
_PR_SET_DUMPABLE = 4


@pytest.fixture
def data(place: Path) -> Path:
    folder = place / "data"
    (folder / "sub").mkdir(parents=True)
    (folder / "word").write_text("from the machine\n")
    return folder


async def said(bench: Bench, script: str, **more: object) -> list[str]:
    state = await bench.run("sh", "-c", script, **more)
    assert state.exit_code == 0, bench.lines(state, "stderr")
    return bench.lines(state)


@pytest.mark.parametrize(
    "where",
    [
        "/data/here",
        "/usr/local/vgpu/here",
        "/usr/lib/not-there/here",
        "/etc/here",
        "/var/run/here",  # a link to /run
        "/dev/here",
        "/",
    ],
)
async def test_a_mount_point_is_made_wherever_it_is_wanted(
    rooted: Bench, data: Path, where: str
) -> None:
    place = where if where != "/" else str(rooted.folder / "below/the/sandbox")
    file = Mount(str(data / "word"), f"{place}/file", read_only=True)
    mounts = (Mount(str(data), f"{place}/folder"), file)
    lines = await said(
        rooted,
        f"cat {place}/file; cat {place}/folder/word; echo more > {place}/folder/new; "
        f"echo no > {place}/file || echo kept; ls /usr/bin/env",
        mounts=mounts,
    )
    assert lines == ["from the machine", "from the machine", "kept", "/usr/bin/env"]
    assert (data / "new").read_text() == "more\n"
    assert (data / "word").read_text() == "from the machine\n"


async def test_what_lies_around_a_mount_point_is_still_there(rooted: Bench, data: Path) -> None:
    """A folder that is opened has everything that the machine has in it."""
    around = LIBRARY.parent
    names = sorted(os.listdir(around))  # noqa: PTH208 - names are compared
    lines = await said(
        rooted,
        f"ls -A {around} && cat {around}/os.py",
        mounts=(Mount(str(data), f"{around}/mine"),),
    )
    assert lines[-len(SOURCE) :] == SOURCE
    assert sorted(lines[: -len(SOURCE)]) == sorted([*names, "mine"])


async def test_a_mount_inside_another_one_is_seen(rooted: Bench, data: Path) -> None:
    inner = rooted.folder / "inner"
    inner.mkdir()
    (inner / "x").touch()
    mounts = (Mount(str(inner), "/d/sub"), Mount(str(data), "/d"), Mount(str(inner), "/d/new"))
    assert await said(rooted, "ls /d /d/sub /d/new", mounts=mounts) == [
        *("/d:", "new", "sub", "word", ""),
        *("/d/new:", "x", "", "/d/sub:", "x"),
    ]


async def test_the_machine_cannot_be_changed_and_its_secrets_are_not_there(rooted: Bench) -> None:
    state = await rooted.run(
        "sh", "-c", "touch /usr/x /usr/bin/x; ls /root /run /tmp; cat /etc/shadow; touch /tmp/x /x"
    )
    assert state.exit_code == 0
    errors = rooted.lines(state, "stderr")
    assert len([line for line in errors if "Read-only" in line or "denied" in line]) >= 1
    assert any("/etc/shadow" in line for line in errors)
    shown = "\n".join(rooted.lines(state))
    assert str(rooted.folder.name) not in shown
    assert not any(map(os.path.exists, ("/usr/bin/x", "/x")))


async def test_devices_processes_and_names_are_there(rooted: Bench) -> None:
    script = (
        "hostname; cat /etc/hostname; id -u; echo x > /dev/null; head -c1 /dev/zero | wc -c; "
        "echo $$; cat /proc/self/stat | cut -d' ' -f4; pwd"
    )
    lines = await said(rooted, script)
    assert lines[:4] == ["pod", "pod", str(os.geteuid()), "1"]
    assert lines[4] == lines[5]  # pids are the machine's, in /proc as elsewhere
    assert lines[6] == "/"


async def test_a_working_folder_is_made(rooted: Bench) -> None:
    assert await said(rooted, "pwd", working_dir="/not/there") == ["/not/there"]


async def test_a_file_is_no_folder(rooted: Bench, data: Path) -> None:
    spec = rooted.spec("true", mounts=(Mount(str(data), "/usr/bin/env/below"),))
    await rooted.runtime.create(spec)
    with pytest.raises(Exception, match="not a directory"):
        await rooted.runtime.start(spec.id)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_has_namespaces_too(rooted: Bench, data: Path) -> None:
    """The way that is not root's: a user namespace in which everybody keeps his ids."""
    folder = rooted.folder / "nobody"
    (folder / "root").mkdir(parents=True)
    for path in (rooted.folder, folder, folder / "root"):
        path.chmod(stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO)
    bin_folder = programs.install(rooted.folder / "rt/bin")
    bundle = Bundle(
        namespaces=True,
        argv=["sh", "-c", f"id -u > {folder}/said; cat /usr/local/new/word >> {folder}/said"],
        env={},
        mounts=[
            (str(data), "/usr/local/new", kernel.READ_ONLY),
            (str(folder), str(folder), 0),
        ],
        working_dir="",
        log="",
        hostname="pod",
        needed=[],
        programs=str(bin_folder),
    )
    (folder / BUNDLE).write_bytes(bundle.encode())
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # as after an exec
            launch(Bundle.read(str(folder)), str(folder))
        except (LaunchError, OSError) as error:
            (folder / "said").write_text(f"cannot: {error}")
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    said = (folder / "said").read_text()
    if said.startswith("cannot: ") and "mount" not in said:
        pytest.skip(f"this machine forbids user namespaces: {said}")
    assert (os.waitstatus_to_exitcode(status), said) == (0, f"{NOBODY}\nfrom the machine\n")
