"""A private apt resolves and fetches; a table replaces maintainer scripts."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hami.image import apt as private_apt
from hami.image import debian
from hami.image.debian import Package
from hami.image.errors import ImageError
from tests.unit.image import handmade as made
from tests.unit.image.handmade import FakeApt


def quiet(_: str) -> None:
    pass


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def test_a_closure_is_fetched_and_unpacked(apt: FakeApt, cache: Path, root: Path) -> None:
    apt.offer("tool_1%3a2.0~rc1_amd64.deb", made.deb(made.file("./bin/tool", b"t", 0o755)))
    apt.offer("base_3_all.deb", made.deb(made.file("./etc/base", b"b")))
    lines: list[str] = []
    packages = debian.unpack(["tool"], root, cache=cache, say=lines.append)
    assert packages == (Package("base", "3"), Package("tool", "1:2.0~rc1"))
    assert (root / "usr/bin/tool").read_text() == "t"
    assert (root / "bin").is_symlink()
    assert lines[-1] == "fetching 2 of 2 Debian packages, 0 MB"


def test_nothing_of_the_hosts_package_state_is_used(apt: FakeApt, cache: Path, root: Path) -> None:
    apt.offer("tool_1_all.deb", made.deb(made.file("./a")))
    debian.unpack(["tool"], root, cache=cache, say=quiet)
    settings = (cache / "apt/apt.conf").read_text()
    for name in ("State", "State::status", "Cache", "Cache::archives", "Log"):
        assert f'Dir::{name} "{cache.resolve()}/apt/' in settings
    for hook in ("APT::Update::Post-Invoke", "DPkg::Post-Invoke", "APT::Update::Pre-Invoke"):
        assert f"#clear {hook};" in settings
    assert all(call[:2] == ["-c", str(cache / "apt/apt.conf")] for call in apt.calls())
    assert {"--print-uris", "--download-only"} >= {
        word for call in apt.calls() if "install" in call for word in call if word[:2] == "--"
    }, "every install only prints or downloads"


def test_helpers_of_scripts_count_as_installed_unless_wanted(
    apt: FakeApt, cache: Path, root: Path
) -> None:
    apt.offer("tool_1_all.deb", made.deb(made.file("./a")))
    status = cache / "apt/status"
    debian.unpack(["tool"], root, cache=cache, say=quiet)
    assert "Package: debconf\nStatus: install ok installed\n" in status.read_text()
    assert "Provides: debconf-2.0\n" in status.read_text()
    debian.unpack(["tool", "debconf=1.*"], root, cache=cache, say=quiet)
    assert "Package: debconf\n" not in status.read_text()
    assert "Package: dpkg\n" in status.read_text()
    debian.unpack(["tool"], root, cache=cache, without=(), say=quiet)
    assert status.read_text() == ""


def test_a_second_use_fetches_nothing(apt: FakeApt, cache: Path, root: Path) -> None:
    apt.offer("tool_1_all.deb", made.deb(made.file("./a")))
    for _ in range(2):
        debian.unpack(["tool"], root, cache=cache, say=quiet)
    assert apt.count("--download-only") == 1
    assert apt.count("update") == 1


def test_lists_are_read_again_after_a_day(apt: FakeApt, cache: Path, root: Path) -> None:
    apt.offer("tool_1_all.deb", made.deb(made.file("./a")))
    debian.unpack(["tool"], root, cache=cache, say=quiet)
    yesterday = time.time() - 25 * 3600
    os.utime(cache / "apt/updated", (yesterday, yesterday))
    debian.unpack(["tool"], root, cache=cache, say=quiet)
    assert apt.count("update") == 2


def test_a_damaged_package_in_the_cache_is_fetched_again(
    apt: FakeApt, cache: Path, root: Path
) -> None:
    apt.offer("tool_1_all.deb", made.deb(made.file("./a", b"good")))
    debian.unpack(["tool"], root, cache=cache, say=quiet)
    kept = cache / "apt/archives/tool_1_all.deb"
    content = bytearray(kept.read_bytes())
    content[-50] ^= 1
    kept.write_bytes(content)
    debian.unpack(["tool"], root, cache=cache, say=quiet)
    assert apt.count("--download-only") == 2
    assert (root / "a").read_text() == "good"


def test_a_mirror_that_moved_on_is_asked_for_its_lists_again(
    apt: FakeApt, cache: Path, root: Path
) -> None:
    apt.offer("tool_1_all.deb", made.deb(made.file("./a")))
    debian.unpack(["tool"], root, cache=cache, say=quiet)
    apt.offer("tool_1_all.deb", b"what the old lists do not know")
    (cache / "apt/archives/tool_1_all.deb").unlink()
    apt.files[0] = ("tool_1_all.deb", 5, "SHA256:" + "0" * 64, "http://mirror.example/x")
    apt.save()
    with pytest.raises(ImageError, match="does not have the hash of its index"):
        debian.unpack(["tool"], root, cache=cache, say=quiet)
    assert apt.count("update") == 2


def test_a_mirror_in_a_folder_is_copied_from_and_left_alone(
    apt: FakeApt, cache: Path, root: Path, tmp_path: Path
) -> None:
    content = made.deb(made.file("./a", b"local"))
    mirror = tmp_path / "my mirror.deb"
    mirror.write_bytes(content)
    apt.offer("tool_1_all.deb", content, uri=f"file:{tmp_path}/my%20mirror.deb")
    (apt.home / "mirror/tool_1_all.deb").unlink()
    debian.unpack(["tool"], root, cache=cache, say=quiet)
    assert (root / "a").read_text() == "local"
    mirror.write_bytes(b"broken")
    (cache / "apt/archives/tool_1_all.deb").write_bytes(b"broken")
    with pytest.raises(ImageError, match="does not have the hash"):
        debian.unpack(["tool"], root, cache=cache, say=quiet)
    assert mirror.read_bytes() == b"broken"


@pytest.mark.parametrize(
    "request_", ["", "-o", "tool-", "tool/sid", "a b", "Tool", "tool=", "tool;id", "./x.deb", "a=$"]
)
def test_what_is_no_package_name_never_reaches_apt(
    apt: FakeApt, cache: Path, root: Path, request_: str
) -> None:
    with pytest.raises(ImageError, match="is no package name; write name or name=version"):
        debian.unpack([request_], root, cache=cache, say=quiet)
    assert apt.calls() == []


def test_an_unknown_package_is_an_error_with_apts_output(
    apt: FakeApt, cache: Path, root: Path
) -> None:
    apt.fail("install", "E: Unable to locate package nosuch\n")
    with pytest.raises(ImageError) as caught:
        debian.unpack(["nosuch"], root, cache=cache, say=quiet)
    assert str(caught.value).startswith("apt-get install nosuch: failed: ")
    assert "E: Unable to locate package nosuch; see `apt-cache policy`" in str(caught.value)


def test_a_mirror_that_is_down_is_an_error_without_its_name(
    apt: FakeApt, cache: Path, root: Path
) -> None:
    apt.fail("update", "E: Could not connect to mirror.example:80 (10.1.2.3). - connect\n")
    with pytest.raises(ImageError) as caught:
        debian.unpack(["tool"], root, cache=cache, say=quiet)
    assert "Could not connect to MIRROR:80 (ADDRESS)" in str(caught.value)
    assert "mirror.example" not in str(caught.value)
    assert not (cache / "apt/updated").exists()


def test_a_machine_without_apt_is_an_error_with_a_remedy(
    cache: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageError, match="apt-get: is not on this machine; build images on Debian"):
        debian.unpack(["tool"], root, cache=cache, say=quiet)


def test_an_index_without_strong_hashes_is_refused(apt: FakeApt, cache: Path, root: Path) -> None:
    apt.offer("tool_1_all.deb", b"", digest="MD5Sum:8e7e741807b1e1939df8f58323affdcb")
    with pytest.raises(ImageError, match="names no SHA256") as caught:
        debian.unpack(["tool"], root, cache=cache, say=quiet)
    assert "mirror.example" not in str(caught.value)


def test_a_cache_that_cannot_be_written_is_an_image_error(apt: FakeApt, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ImageError, match="fetching Debian packages: failed"):
        debian.unpack(["tool"], tmp_path / "root", cache=tmp_path / "file", say=quiet)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("Err http://u:p@a.example:80/debian x", "Err http://MIRROR/debian x"),
        ("ar+https://b.example/x then b.example", "ar+https://MIRROR/x then MIRROR"),
        ("Could not resolve 'proxy.example'", "Could not resolve MIRROR"),
        ("wicked happened resolving 'c.example:http'", "wicked happened resolving MIRROR:http'"),
        ("Connection failed [IP: 192.0.2.1 80]", "Connection failed [IP: ADDRESS 80]"),
        ("(2001:db8:0:1::5)", "(ADDRESS)"),
        ("E: Unable to locate package b", "E: Unable to locate package b"),
    ],
)
def test_host_names_are_cut_out(words: str, shown: str) -> None:
    assert private_apt.hide_hosts(words) == shown


@pytest.mark.parametrize(
    ("name", "skipped"),
    [
        ("usr/share/man/man1/ls.1.gz", True),
        ("usr/share/locale/de", True),
        ("usr/share/doc/bash", True),
        ("usr/share/doc/bash/README", True),
        ("usr/share/doc-base/bash", True),
        ("usr/share/info/dir", True),
        ("usr/share/doc/bash/copyright", False),
        ("usr/share/manual", False),
        ("usr/bin/man", False),
        ("opt/usr/share/man/x", False),
    ],
)
def test_documentation_is_skipped_and_licences_are_not(name: str, skipped: bool) -> None:
    assert debian.documentation(name) is skipped


def test_alternatives_are_linked_where_both_sides_allow(root: Path) -> None:
    (root / "usr/sbin").mkdir(parents=True)
    (root / "usr/sbin/iptables-nft").write_text("nft")
    (root / "usr/sbin/ip6tables-nft").write_text("nft")
    (root / "usr/sbin/ip6tables").write_text("its own")
    (root / "usr/sbin/ebtables-nft").symlink_to("/bin/sh-of-the-host")
    debian.link_alternatives(root, debian.ALTERNATIVES)
    assert (root / "usr/sbin/iptables").readlink() == Path("iptables-nft")
    assert (root / "usr/sbin/ip6tables").read_text() == "its own"
    assert not (root / "usr/sbin/ebtables").is_symlink()
    assert not (root / "usr/bin").exists()


def test_another_choice_of_alternative_wins(root: Path) -> None:
    (root / "usr/sbin").mkdir(parents=True)
    for kind in ("nft", "legacy"):
        (root / f"usr/sbin/iptables-{kind}").write_text(kind)
    legacy = {**debian.ALTERNATIVES, "usr/sbin/iptables": "iptables-legacy"}
    debian.link_alternatives(root, legacy)
    assert (root / "usr/sbin/iptables").read_text() == "legacy"


def test_certificates_are_bundled_in_order(root: Path) -> None:
    folder = root / "usr/share/ca-certificates/mozilla"
    folder.mkdir(parents=True)
    for name in ("b", "a"):
        (folder / f"{name}.crt").write_text(f"--{name}--")
    debian.bundle_certificates(root)
    assert (root / "etc/ssl/certs/ca-certificates.crt").read_text() == "--a--\n--b--\n"


def test_without_certificates_there_is_no_bundle(root: Path) -> None:
    root.mkdir()
    debian.bundle_certificates(root)
    assert made.whole(root) == {}
