"""Extenders over HTTPS, as the product's chart configures them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami.serving.certificates import LiveCertificate
from hami_sandbox.errors import SandboxError
from hami_sandbox.kube_scheduler.configuration import Extender, Tls
from hami_sandbox.kube_scheduler.extenders import Extenders
from sandbox.tests.unit.kube_scheduler import rig
from sandbox.tests.unit.kube_scheduler.makers import GPU, node_object, pod_object
from tests.authority import Authority
from tests.scripted_api.server import ScriptedApi
from tests.unit.kube.following import until


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with a server's pair for a name that is not its address, and authorities."""
    right, wrong = Authority("right", old=True), Authority("wrong")
    issued = right.issue("server", hosts=["hami.test"])
    for name, text in {
        "tls.crt": issued.certificate,
        "tls.key": issued.key,
        "ca.crt": right.pem,
        "wrong.crt": wrong.pem,
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("ca", "name", "insecure", "trusted"),
    [
        ("ca.crt", "hami.test", False, True),
        ("", "", True, True),
        ("ca.crt", "", False, False),
        ("wrong.crt", "hami.test", False, False),
    ],
)
async def test_who_is_trusted(
    files: Path, ca: str, name: str, insecure: bool, trusted: bool
) -> None:
    certificate = LiveCertificate(str(files / "tls.crt"), str(files / "tls.key"), "")
    async with ScriptedApi() as api, rig.extender(api, tls=certificate) as extender:
        url = extender.url.replace("http:", "https:")
        tls = Tls(insecure=insecure, ca_file=str(files / ca) if ca else "", server_name=name)
        api.put(node_object("a"))
        async with rig.running(api, extender.settings(url=url, tls=tls)):
            api.put(pod_object("p", requests={GPU: "1"}))
            await until(lambda: rig.node_of(api, "p") or rig.condition(api, "p"))
            assert bool(extender.binds) is trusted
            if not trusted:
                assert rig.condition(api, "p")["reason"] == "SchedulerError"
                assert "certificate" in rig.condition(api, "p")["message"]


def test_files_that_are_not_there(tmp_path: Path) -> None:
    settings = Extender(url="https://127.0.0.1:1", tls=Tls(ca_file=str(tmp_path / "none")))
    with pytest.raises(SandboxError, match="tlsConfig cannot be used"):
        Extenders([settings])
