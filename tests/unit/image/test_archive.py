"""One archive, two manifests over the same blobs, and a strict reader."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hami.image import layers, oci, verify
from hami.image.errors import ImageError
from hami.image.layers import Layer
from tests.unit.image import handmade as made

NAME = "hami.local/tool:1.2"
SETTINGS = oci.Settings(
    entrypoint=("/tool", "serve"),
    command=("--help",),
    env={"PATH": oci.PATH, "LANG": "C.UTF-8"},
    user="65532:65532",
    workdir="/tmp",  # noqa: S108 - inside the image
    labels={"b": "2", "a": "1"},
)

Members = dict[str, bytes]


@pytest.fixture
def two(tmp_path: Path) -> list[Layer]:
    made_layers = []
    for name in ("lower", "upper"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(name)
        made_layers.append(
            layers.pack(tmp_path / name, tmp_path / f"{name}.tar.gz", made_by=f"made {name}")
        )
    return made_layers


@pytest.fixture
def archive(tmp_path: Path, two: list[Layer]) -> Path:
    out = tmp_path / "image.tar"
    oci.write(out, names=[NAME], layers=two, settings=SETTINGS)
    return out


def read(archive: Path) -> Members:
    with tarfile.open(archive) as tar:
        files = {m.name: tar.extractfile(m) for m in tar if m.isreg()}
        return {name: file.read() for name, file in files.items() if file}


def rewrite(archive: Path, members: Members, *more: tuple[tarfile.TarInfo, bytes]) -> None:
    with tarfile.open(archive, "w") as tar:
        for entry, content in (*(made.file(n, c) for n, c in members.items()), *more):
            tar.addfile(entry, io.BytesIO(content))


def manifest_of(members: Members) -> tuple[str, Any]:
    digest = json.loads(members["index.json"])["manifests"][0]["digest"]
    return digest, json.loads(members[oci.blob_path(digest)])


def test_the_two_manifests_describe_the_same_image(archive: Path, two: list[Layer]) -> None:
    members = read(archive)
    assert json.loads(members["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    _, manifest = manifest_of(members)
    [docker] = json.loads(members["manifest.json"])
    assert docker["Config"] == oci.blob_path(manifest["config"]["digest"])
    assert docker["Layers"] == [oci.blob_path(layer["digest"]) for layer in manifest["layers"]]
    assert [layer["digest"] for layer in manifest["layers"]] == [layer.digest for layer in two]
    assert docker["RepoTags"] == [NAME]


def test_every_blob_has_the_digest_it_is_named_by(archive: Path) -> None:
    blobs = {n: c for n, c in read(archive).items() if n.startswith("blobs/")}
    assert len(blobs) == 4
    assert all(oci.blob_path(made.digest(content)) == name for name, content in blobs.items())


def test_the_index_names_the_image_for_containerd_and_by_tag(archive: Path) -> None:
    [entry] = json.loads(read(archive)["index.json"])["manifests"]
    assert entry["annotations"] == {
        "io.containerd.image.name": NAME,
        "org.opencontainers.image.ref.name": "1.2",
    }
    assert entry["platform"] == {"architecture": oci.architecture(), "os": "linux"}


def test_the_config_says_what_a_container_starts_with(archive: Path, two: list[Layer]) -> None:
    image = verify.archive(archive)
    assert image.config["config"] == {
        "Entrypoint": ["/tool", "serve"],
        "Cmd": ["--help"],
        "Env": ["LANG=C.UTF-8", f"PATH={oci.PATH}"],
        "User": "65532:65532",
        "WorkingDir": "/tmp",  # noqa: S108 - inside the image
        "Labels": {"a": "1", "b": "2"},
    }
    assert image.config["rootfs"]["diff_ids"] == [layer.diff_id for layer in two]
    assert image.config["history"] == [
        {"created": "1970-01-01T00:00:00Z", "created_by": f"made {name}"}
        for name in ("lower", "upper")
    ]
    assert (image.names, image.size) == ((NAME,), archive.stat().st_size)


def test_the_same_inputs_give_the_same_bytes(archive: Path, two: list[Layer]) -> None:
    again = archive.with_name("again.tar")
    digest = oci.write(again, names=[NAME], layers=two, settings=SETTINGS)
    assert again.read_bytes() == archive.read_bytes()
    assert verify.archive(again).digest == digest


def test_the_order_of_settings_changes_no_byte(archive: Path, two: list[Layer]) -> None:
    turned = replace(
        SETTINGS,
        env=dict(reversed(list(SETTINGS.env.items()))),
        labels=dict(reversed(list(SETTINGS.labels.items()))),
    )
    again = archive.with_name("again.tar")
    oci.write(again, names=[NAME], layers=two, settings=turned)
    assert again.read_bytes() == archive.read_bytes()


def test_members_of_the_archive_carry_no_time_and_no_owner(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        found = {(m.mtime, m.uid, m.gid, m.uname, m.mode) for m in tar if m.isreg()}
    assert found == {(0, 0, 0, "", 0o644)}


def test_source_date_epoch_is_the_time_of_creation(
    archive: Path, two: list[Layer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    oci.write(archive, names=[NAME], layers=two, settings=SETTINGS)
    assert verify.archive(archive).config["created"] == "2023-11-14T22:13:20Z"


def test_an_image_can_have_several_names(archive: Path, two: list[Layer]) -> None:
    oci.write(archive, names=[NAME, "tool:2"], layers=two, settings=SETTINGS)
    assert verify.archive(archive).names == (NAME, "docker.io/library/tool:2")


def test_a_layer_used_twice_is_stored_once(archive: Path, two: list[Layer]) -> None:
    oci.write(archive, names=[NAME], layers=[two[0], two[0]], settings=SETTINGS)
    assert len(verify.archive(archive).layers) == 2
    assert len([name for name in read(archive) if name.startswith("blobs/")]) == 3


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("busybox:1", "docker.io/library/busybox:1"),
        ("hami/busybox:1", "docker.io/hami/busybox:1"),
        ("localhost/a:1", "localhost/a:1"),
        ("host:5000/a/b:v1.0-rc.1", "host:5000/a/b:v1.0-rc.1"),
        ("hami.local/pause:3.10", "hami.local/pause:3.10"),
    ],
)
def test_a_name_is_written_in_full(name: str, full: str) -> None:
    assert oci.full_name(name) == full
    assert oci.full_name(full) == full


@pytest.mark.parametrize(
    "name",
    ["", "busybox", "Busybox:1", "a b:1", "a:", ":1", "a:-1", "a@sha256:1", "a//b:1", "a:1\n"],
)
def test_a_name_that_no_runtime_takes_is_refused(name: str) -> None:
    with pytest.raises(ImageError, match=r"is not \[host/\]path:tag .* write for example hami"):
        oci.full_name(name)


def test_an_image_without_name_or_layer_is_refused(archive: Path, two: list[Layer]) -> None:
    with pytest.raises(ImageError, match="at least one name"):
        oci.write(archive, names=[], layers=two, settings=SETTINGS)
    with pytest.raises(ImageError, match="at least one name and one layer"):
        oci.write(archive, names=[NAME], layers=[], settings=SETTINGS)


def test_an_unknown_machine_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(ImageError, match="machine 'riscv64': is none of x86_64, aarch64"):
        oci.architecture()


def edit(name: str, change: Callable[[Any], object]) -> Callable[[Members], None]:
    """Change the JSON member `name` and nothing that depends on it."""

    def corrupt(members: Members) -> None:
        document = json.loads(members[name])
        change(document)
        members[name] = json.dumps(document).encode()

    return corrupt


def edit_blob(which: str, change: Callable[[Any], object]) -> Callable[[Members], None]:
    """Change manifest or config, and make every digest above it fit again."""

    def corrupt(members: Members) -> None:
        digest, manifest = manifest_of(members)
        members.pop(oci.blob_path(digest))
        if which == "config":
            old = manifest["config"]["digest"]
            config = json.loads(members.pop(oci.blob_path(old)))
            change(config)
            content = json.dumps(config).encode()
            manifest["config"].update(digest=made.digest(content), size=len(content))
            members[oci.blob_path(made.digest(content))] = content
            members["manifest.json"] = members["manifest.json"].replace(
                old[7:].encode(), made.digest(content)[7:].encode()
            )
        else:
            change(manifest)
        content = json.dumps(manifest).encode()
        members[oci.blob_path(made.digest(content))] = content
        index = json.loads(members["index.json"])
        index["manifests"][0].update(digest=made.digest(content), size=len(content))
        members["index.json"] = json.dumps(index).encode()

    return corrupt


def flip_each_kind(kind: str) -> Callable[[Members], None]:
    def corrupt(members: Members) -> None:
        digest, manifest = manifest_of(members)
        chosen = {
            "manifest": digest,
            "config": manifest["config"]["digest"],
            "layer": manifest["layers"][1]["digest"],
        }[kind]
        content = bytearray(members[oci.blob_path(chosen)])
        content[len(content) // 2] ^= 1
        members[oci.blob_path(chosen)] = bytes(content)

    return corrupt


def drop(name: str) -> Callable[[Members], None]:
    def corrupt(members: Members) -> None:
        del members[name]

    return corrupt


def put(name: str, content: bytes) -> Callable[[Members], None]:
    def corrupt(members: Members) -> None:
        members[name] = content

    return corrupt


def drop_layer(members: Members) -> None:
    _, manifest = manifest_of(members)
    del members[oci.blob_path(manifest["layers"][0]["digest"])]


def plain_layer(members: Members) -> None:
    """Store a layer that is not gzipped, with every digest right."""

    def change(manifest: Any) -> None:
        layer = manifest["layers"][0]
        content = gzip.decompress(members.pop(oci.blob_path(layer["digest"])))
        members["manifest.json"] = members["manifest.json"].replace(
            layer["digest"][7:].encode(), made.digest(content)[7:].encode()
        )
        layer.update(digest=made.digest(content), size=len(content))
        members[oci.blob_path(layer["digest"])] = content

    edit_blob("manifest", change)(members)


CORRUPTIONS: dict[str, tuple[Callable[[Members], None], str]] = {
    "a bit of the manifest": (flip_each_kind("manifest"), "has the content of"),
    "a bit of the config": (flip_each_kind("config"), "has the content of"),
    "a bit of a layer": (flip_each_kind("layer"), "has the content of"),
    "a blob cut": (
        lambda m: m.update({oci.blob_path(manifest_of(m)[0]): b"{}"}),
        r"says sha256:.* bytes, it has 2",
    ),
    "no layout": (drop("oci-layout"), "'oci-layout' is missing"),
    "another layout": (put("oci-layout", b'{"imageLayoutVersion":"2.0.0"}'), "oci-layout is not"),
    "no index": (drop("index.json"), "'index.json' is missing"),
    "no docker manifest": (drop("manifest.json"), "'manifest.json' is missing"),
    "no layer": (drop_layer, r"'blobs/sha256/\w+' is missing"),
    "index no JSON": (put("index.json", b"{"), "'index.json' is no JSON"),
    "index no UTF-8": (put("index.json", b"\xff\xfe\xfd"), "'index.json' is no JSON"),
    "index nested deep": (put("index.json", b"[" * 10**6), "'index.json' is no JSON"),
    "index a list": (put("index.json", b"[]"), "index.json has no manifests that is a list"),
    "index huge": (put("index.json", b" " * (5 << 20)), "too many for JSON"),
    "index empty": (edit("index.json", lambda d: d["manifests"].clear()), "names 0 manifests"),
    "no digest": (edit("index.json", lambda d: d["manifests"][0].pop("digest")), "no digest"),
    "size a text": (edit("index.json", lambda d: d["manifests"][0].update(size="1")), "no size"),
    "size wrong": (edit("index.json", lambda d: d["manifests"][0].update(size=1)), "has 1 bytes"),
    "digest elsewhere": (
        edit("index.json", lambda d: d["manifests"][0].update(digest="sha256:../../oci-layout")),
        "is missing",
    ),
    "media type": (
        edit("index.json", lambda d: d["manifests"][0].update(mediaType="x/y")),
        "describes a 'x/y'",
    ),
    "platform": (
        edit("index.json", lambda d: d["manifests"][0]["platform"].update(os="plan9")),
        "says the platform is",
    ),
    "no names": (edit("index.json", lambda d: d["manifests"][0].pop("annotations")), "annotations"),
    "tag": (
        edit("index.json", lambda d: d["manifests"][0]["annotations"].update({oci.TAG: "9"})),
        "calls the image 'hami.local/tool:1.2' and its tag '9'",
    ),
    "name not full": (
        edit(
            "index.json",
            lambda d: d["manifests"][0]["annotations"].update({oci.FULL_NAME: "tool:1.2"}),
        ),
        "calls the image 'tool:1.2'",
    ),
    "docker names": (edit("manifest.json", lambda d: d[0]["RepoTags"].append("x")), "RepoTags"),
    "docker layers": (edit("manifest.json", lambda d: d[0]["Layers"].reverse()), "Layers"),
    "docker config": (edit("manifest.json", lambda d: d[0].update(Config="x")), "Config"),
    "docker twice": (edit("manifest.json", lambda d: d.append(d[0])), "not a list of one"),
    "docker an object": (put("manifest.json", b"{}"), "not a list of one"),
    "docker of numbers": (put("manifest.json", b"[1]"), "not a list of one"),
    "layers swapped": (
        edit_blob("manifest", lambda d: d["layers"].reverse()),
        "unzips to",
    ),
    "layer type": (
        edit_blob("manifest", lambda d: d["layers"][0].update(mediaType="x")),
        "describes a 'x'",
    ),
    "layers a text": (edit_blob("manifest", lambda d: d.update(layers="x")), "no layers"),
    "no config": (edit_blob("manifest", lambda d: d.pop("config")), "no config"),
    "a plain layer": (plain_layer, "does not unzip"),
    "diff_id": (
        edit_blob("config", lambda d: d["rootfs"]["diff_ids"].reverse()),
        "unzips to",
    ),
    "a diff_id less": (
        edit_blob("config", lambda d: d["rootfs"]["diff_ids"].pop()),
        "lists 1 layers, the manifest 2",
    ),
    "no rootfs": (edit_blob("config", lambda d: d.pop("rootfs")), "no rootfs"),
    "architecture": (
        edit_blob("config", lambda d: d.update(architecture="s390x")),
        "says the platform is",
    ),
    "another blob": (put("blobs/sha256/00", b"stray"), "'blobs/sha256/00' belongs to no manifest"),
    "another file": (put("repositories", b"{}"), "'repositories' belongs to no manifest"),
}


@pytest.mark.parametrize("planted", CORRUPTIONS)
def test_every_planted_corruption_is_noticed(archive: Path, planted: str) -> None:
    corrupt, words = CORRUPTIONS[planted]
    members = read(archive)
    rewrite(archive, members)
    verify.archive(archive)  # it is the corruption that is noticed, not the rewriting
    corrupt(members)
    rewrite(archive, members)
    with pytest.raises(ImageError, match=words) as caught:
        verify.archive(archive)
    assert str(caught.value).startswith("image archive image.tar: ")


def test_a_member_that_is_there_twice_is_refused(archive: Path) -> None:
    members = read(archive)
    rewrite(archive, members, made.file("index.json", members["index.json"]))
    with pytest.raises(ImageError, match=r"'index\.json' is there twice"):
        verify.archive(archive)


def test_a_member_that_is_a_link_is_refused(archive: Path) -> None:
    rewrite(archive, read(archive), made.link("blobs/sha256/1", "/etc/passwd"))
    with pytest.raises(ImageError, match="is neither blob nor manifest"):
        verify.archive(archive)


@pytest.mark.parametrize("content", [b"", b"no tar", b"\0" * 10240])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(ImageError, match=r"image archive x\.tar: "):
        verify.archive(tmp_path / "x.tar")


def test_a_missing_or_cut_archive_is_an_image_error(archive: Path) -> None:
    with pytest.raises(ImageError, match="cannot be read"):
        verify.archive(archive.with_name("nowhere.tar"))
    whole = archive.read_bytes()
    for length in range(0, len(whole) - 10240, 1000):
        archive.write_bytes(whole[:length])
        with pytest.raises(ImageError):
            verify.archive(archive)
