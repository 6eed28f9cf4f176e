"""`hami scheduler config`: to stdout or a folder; wrong options are named."""

from __future__ import annotations

import pathlib

import pytest
import yaml

from hami.cli import main


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main.main(["scheduler", "config", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_it_prints_what_the_version_reads(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys,
        "--kube-version=v1.30.14",
        "--url=https://127.0.0.1:443",
        "--ca-file=/ca",
        "--scheduler-name=mine",
        "--lease-name=l",
        "--lease-namespace=n",
        "--lease-duration=15s",
        "--leader-elect=false",
    )
    assert (code, err) == (0, "")
    document = yaml.safe_load(out)
    assert document["profiles"] == [{"schedulerName": "mine"}]
    assert document["extenders"][0]["tlsConfig"] == {"caFile": "/ca"}
    election = document["leaderElection"]
    assert (election["resourceName"], election["leaseDuration"]) == ("l", "15s")
    assert election["leaderElect"] is False


def test_it_writes_all_files_into_a_new_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "new" / "one"
    code = run(capsys, "--kube-version=1.18", f"--output-dir={folder}", "--folder=/conf")[0]
    assert code == 0
    assert {file.name for file in folder.iterdir()} == {"kube-scheduler.yaml", "policy.yaml"}
    configuration = yaml.safe_load((folder / "kube-scheduler.yaml").read_text())
    assert configuration["algorithmSource"]["policy"]["file"]["path"] == "/conf/policy.yaml"


def test_names_of_resources_come_from_the_device_config_file(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "device-config.yaml"
    file.write_text("nvidia:\n  resourceCountName: example.com/gpu\n")
    code, out, _ = run(capsys, "--kube-version=1.36", f"--device-config-file={file}")
    assert code == 0
    managed = yaml.safe_load(out)["extenders"][0]["managedResources"]
    assert managed[0]["name"] == "example.com/gpu"
    file.write_text("nvidia:\n  resourceCountName: example.com/gpu\n  resourceCuontName: x\n")
    code, out, err = run(capsys, "--kube-version=1.36", f"--device-config-file={file}")
    assert (code, out) == (2, "")
    assert "nvidia.resourceCuontName: no such key; did you mean resourceCountName?" in err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "the following arguments are required: --kube-version"),
        (["--kube-version=new"], 2, "Kubernetes version: 'new' is no version of Kubernetes 1"),
        (
            ["--kube-version=1.36", "--url=127.0.0.1"],
            2,
            "--url: '127.0.0.1' is no http or https address",
        ),
        (["--kube-version=1.36", "--url=https://h"], 2, "needs a CA to be trusted; add --ca-file"),
        (["--kube-version=1.36", "--client-key-file=a"], 2, "go together; give both or none"),
        (["--kube-version=1.36", "--renew-deadline=9s"], 2, "or two could lead at once"),
        (["--kube-version=1.36", "--lease-duration=8"], 2, "--lease-duration: '8' is not a dur"),
        (["--kube-version=1.36", "--http-timeout=0s"], 2, "must be more than 0"),
        (["--kube-version=1.36", "--device-config-file=/none"], 2, "/none: the file cannot be"),
        (["--kube-version=1.36", "--leader-elect=may"], 2, "--leader-elect: 'may' is not a bool"),
        (["--kube-version=1.36", "--output-dir=/dev/null"], 1, "cannot be written"),
    ],
)
def test_what_is_wrong_is_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    found, out, err = run(capsys, *words)
    assert (found, out) == (code, "")
    assert err.startswith("hami scheduler config: ")
    assert message in err
    assert err.count("\n") == 1


def test_https_without_a_ca_must_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--kube-version=1.36", "--url=https://127.0.0.1", "--insecure")
    assert yaml.safe_load(out)["extenders"][0]["tlsConfig"] == {"insecure": True}
