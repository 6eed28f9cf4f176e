"""Folders and files of a token: hami's agent, and the bare plugin.

Paths are as the node sees them. A file that lies in one of these places belongs to the token in its
name, and the token to the container whose entry in kubelet's checkpoint names it.
"""

from __future__ import annotations

import dataclasses
import pathlib

from tests.e2e.auditor import claims, policy
from tests.e2e.auditor.claims import EnvReader, LedgerReader, PolicyReader

CDI_FOLDERS = ("/var/run/cdi", "/etc/cdi")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    cdi_kind: str
    tokens: str
    policy_file: str
    """Within a token's folder."""
    read_env: EnvReader
    read_policy: PolicyReader
    cdi_folders: tuple[str, ...] = CDI_FOLDERS
    states: str | None = None
    """Holds a folder for each token, where containers are given a file for their accounts."""
    token_annotation: str | None = None
    """Of an answer to kubelet: names its token, also where there is no CDI device."""
    ledger: str | None = None
    read_ledger: LedgerReader = claims.json_ledger

    @property
    def spec_prefix(self) -> str:
        return f"{self.cdi_kind.replace('/', '-')}-"

    def token_of_device(self, cdi_name: str) -> str | None:
        """Return the token of a CDI device's full name, None if it is another plugin's."""
        kind, _, token = cdi_name.partition("=")
        return token if kind == self.cdi_kind and token else None

    def token_of_path(self, host_path: str) -> str | None:
        """Return the token in one of whose folders a mount's source lies."""
        path = pathlib.PurePosixPath(host_path)
        for folder in (self.tokens, self.states):
            if folder is not None and path.is_relative_to(folder):
                inner = path.relative_to(folder).parts
                return inner[0] if inner else None
        return None


HOOK = "/usr/local"


def hami(hook: str = HOOK) -> Layout:
    """Return the layout of hami's agent; the chart's hook path decides where its tokens are."""
    return Layout(
        cdi_kind="hami.io/vgpu",
        tokens=f"{hook}/vgpu/tokens",
        policy_file="policy",
        read_env=claims.hami_env,
        read_policy=policy.read,
        states="/run/hami/state",
        ledger="/var/lib/hami/ledger",
        token_annotation="hami.io/vgpu-token",  # noqa: S106 - the name of an annotation
    )


HAMI = hami()
BARE = Layout(
    cdi_kind="bare.hami.io/vgpu",
    tokens="/var/lib/bare-plugin/tokens",
    policy_file="policy.json",
    read_env=claims.bare_env,
    read_policy=claims.json_policy,
)
ALL = (HAMI, BARE)
