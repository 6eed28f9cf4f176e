"""What the kubelet stand-in can be told."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hami_sandbox.errors import SandboxError
from hami_sandbox.kubelet.attempts import Waits


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    node_name: str
    kubeconfig: str
    folder: Path
    cdi_dirs: tuple[Path, ...]
    cri_socket: Path
    runtime_dir: Path
    log_token_file: Path
    version: str
    labels: dict[str, str] = {}
    cpu: str = "64"
    memory: str = "512Gi"
    pods: int = 110
    waits: Waits = Waits()
    debug: bool = False


def parse(arguments: Sequence[str]) -> Settings:
    parser = argparse.ArgumentParser(prog="hami_sandbox.kubelet", description=__doc__)
    waits = Waits()
    parser.add_argument("--node-name", required=True)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="kubelet's own folder")
    parser.add_argument("--cdi-dirs", required=True, help="folders of CDI specs, by commas")
    parser.add_argument("--cri-socket", type=Path, required=True)
    parser.add_argument("--runtime-dir", type=Path, required=True, help="the containers' folder")
    parser.add_argument("--log-token-file", type=Path, required=True, help="who may read logs")
    parser.add_argument("--version", required=True, help="the version that the node shows")
    parser.add_argument("--labels", default="", help="labels of the node: k=v,...")
    parser.add_argument("--cpu", default="64")
    parser.add_argument("--memory", default="512Gi")
    parser.add_argument("--pods", type=int, default=110)
    parser.add_argument("--backoff-initial", type=float, default=waits.first, help="seconds")
    parser.add_argument("--backoff-max", type=float, default=waits.longest, help="seconds")
    parser.add_argument("--backoff-reset", type=float, default=waits.forgiven_after, help="seconds")
    parser.add_argument("--debug", action="store_true")
    told = parser.parse_args(arguments)
    return Settings(
        node_name=told.node_name,
        kubeconfig=told.kubeconfig,
        folder=told.folder,
        cdi_dirs=tuple(Path(each) for each in told.cdi_dirs.split(",") if each),
        cri_socket=told.cri_socket,
        runtime_dir=told.runtime_dir,
        log_token_file=told.log_token_file,
        version=told.version,
        labels=_labels(told.labels),
        cpu=told.cpu,
        memory=told.memory,
        pods=told.pods,
        waits=Waits(
            first=told.backoff_initial,
            longest=told.backoff_max,
            forgiven_after=told.backoff_reset,
        ),
        debug=told.debug,
    )


def _labels(text: str) -> dict[str, str]:
    made: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        key, found, value = pair.partition("=")
        if not found or not key:
            raise SandboxError(f"--labels {pair!r}", "is no label", "write them as key=value,...")
        made[key] = value
    return made
