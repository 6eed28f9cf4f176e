"""Real TLS: trust, our own identity, and changes of both while running."""

from __future__ import annotations

import base64
import json
import os
import pathlib
import ssl
import stat
import sys
from typing import Any

import pytest

from hami.kube import access, credentials, errors, paths
from hami.kube.client import Client
from tests.scripted_api.server import ScriptedApi
from tests.unit.kube import kubeconfigs
from tests.unit.kube.certificates import Authority


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("test authority")


async def ask(found: access.Access) -> None:
    async with Client(found, user_agent="tls", timeout=30) as client:
        await client.get(paths.pods())


def data(pem: str) -> str:
    return base64.b64encode(pem.encode()).decode()


async def test_a_server_of_our_authority_is_trusted(
    authority: Authority, tmp_path: pathlib.Path
) -> None:
    async with ScriptedApi(tls=authority.server(tmp_path, "127.0.0.1")) as api:
        (tmp_path / "ca.pem").write_text(authority.pem)
        for cluster in (
            {"server": api.url, "certificate-authority-data": data(authority.pem)},
            {"server": f"{api.url}/", "certificate-authority": "ca.pem"},
            {"server": api.url, "insecure-skip-tls-verify": True},
        ):
            await ask(access.find(kubeconfigs.write(tmp_path / "config", cluster=cluster)))


async def test_a_server_of_an_authority_without_key_identifier_is_trusted(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ssl.create_default_context

    def strict(*args: Any, **more: Any) -> ssl.SSLContext:
        """Do as Python 3.13, whatever Python this is."""
        context = made(*args, **more)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    old = Authority("old", old=True)
    async with ScriptedApi(tls=old.server(tmp_path, "127.0.0.1")) as api:
        cluster = {"server": api.url, "certificate-authority-data": data(old.pem)}
        await ask(access.find(kubeconfigs.write(tmp_path / "config", cluster=cluster)))


async def test_a_server_of_another_authority_is_not_and_the_message_says_what_to_correct(
    authority: Authority, tmp_path: pathlib.Path
) -> None:
    async with ScriptedApi(tls=authority.server(tmp_path, "127.0.0.1")) as api:
        cluster = {"server": api.url, "certificate-authority-data": data(Authority("x").pem)}
        path = kubeconfigs.write(tmp_path / "config", cluster=cluster)
        with pytest.raises(errors.Unreachable) as raised:
            await ask(access.find(path))
        assert api.requests == []
    assert not raised.value.outcome_unknown
    for part in (api.url, "not trusted", "certificate-authority", path):
        assert part in str(raised.value)


async def test_a_server_under_another_name_is_not_trusted_unless_the_name_is_given(
    authority: Authority, tmp_path: pathlib.Path
) -> None:
    async with ScriptedApi(tls=authority.server(tmp_path, "kubernetes.example")) as api:
        cluster = {"server": api.url, "certificate-authority-data": data(authority.pem)}
        with pytest.raises(errors.Unreachable, match="certificate is not trusted"):
            await ask(access.find(kubeconfigs.write(tmp_path / "config", cluster=cluster)))
        named = {**cluster, "tls-server-name": "kubernetes.example"}
        await ask(access.find(kubeconfigs.write(tmp_path / "config", cluster=named)))


async def test_a_client_certificate_opens_the_door(
    authority: Authority, tmp_path: pathlib.Path
) -> None:
    tls = authority.server(tmp_path, "127.0.0.1", clients=True)
    mine = authority.issue("me")
    async with ScriptedApi(tls=tls) as api:
        cluster = {"server": api.url, "certificate-authority-data": data(authority.pem)}
        user = {
            "client-certificate-data": data(mine.certificate),
            "client-key-data": data(mine.key),
        }
        await ask(access.find(kubeconfigs.write(tmp_path / "config", cluster=cluster, user=user)))
        with pytest.raises(errors.Unreachable):
            await ask(access.find(kubeconfigs.write(tmp_path / "config", cluster=cluster)))
        assert len(api.requests) == 1


async def test_new_connections_use_the_certificate_that_lies_there_now(
    authority: Authority, tmp_path: pathlib.Path
) -> None:
    old, new = Authority("old"), Authority("new")
    tls = authority.server(tmp_path, "127.0.0.1", clients=True)
    tls.load_verify_locations(cadata=new.pem)
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    async with ScriptedApi(tls=tls) as api:
        cluster = {"server": api.url, "certificate-authority-data": data(authority.pem)}
        user = {"client-certificate": str(certificate), "client-key": str(key)}
        pair = old.issue("me")
        certificate.write_text(pair.certificate)
        key.write_text(pair.key)
        path = kubeconfigs.write(tmp_path / "config", cluster=cluster, user=user)
        async with Client(access.find(path), user_agent="t", timeout=30) as client:
            with pytest.raises(errors.Unreachable):
                await client.get(paths.pods())
            # Caught between the two files, the old pair stays in use.
            pair = new.issue("me")
            certificate.write_text(pair.certificate)
            with pytest.raises(errors.Unreachable):
                await client.get(paths.pods())
            key.write_text(pair.key)
            await client.get(paths.pods())


class TestServiceAccounts:
    @pytest.fixture
    def folder(self, tmp_path: pathlib.Path, authority: Authority) -> pathlib.Path:
        """Give the folder as kubelet makes it: files behind a link that is swapped."""
        self.mount(tmp_path, 1, "first", authority.pem)
        for name in ("token", "ca.crt"):
            (tmp_path / name).symlink_to(f"..data/{name}")
        return tmp_path

    def mount(self, folder: pathlib.Path, number: int, token: str, authority: str) -> None:
        content = folder / f"..{number}"
        content.mkdir()
        (content / "token").write_text(token)
        (content / "ca.crt").write_text(authority)
        link = folder / "..new"
        link.symlink_to(content.name)
        link.rename(folder / "..data")

    def find(
        self, api: ScriptedApi, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> access.Access:
        host, port = api.url.removeprefix("https://").split(":")
        monkeypatch.delenv("KUBECONFIG", raising=False)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        monkeypatch.setattr("hami.kube.access.here.__defaults__", (str(folder),))
        monkeypatch.setattr("hami.kube.access.load.__defaults__", (str(folder),))
        return access.find()

    async def test_a_rotated_token_is_used_from_the_next_request_on(
        self,
        folder: pathlib.Path,
        authority: Authority,
        tmp_path: pathlib.Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        async with ScriptedApi(tls=authority.server(tmp_path, "127.0.0.1")) as api:
            found = self.find(api, folder, monkeypatch)
            async with Client(found, user_agent="t") as client:
                await client.get(paths.pods())
                self.mount(folder, 2, "second\n", authority.pem)
                await client.get(paths.pods())
        shown = [request.headers["Authorization"] for request in api.requests]
        assert shown == ["Bearer first", "Bearer second"]

    async def test_a_token_that_changed_unnoticed_is_read_again_when_the_old_one_is_refused(
        self,
        folder: pathlib.Path,
        authority: Authority,
        tmp_path: pathlib.Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        async with ScriptedApi(tls=authority.server(tmp_path, "127.0.0.1")) as api:
            found = self.find(api, folder, monkeypatch)
            async with Client(found, user_agent="t") as client:
                await client.get(paths.pods())
                token = folder / "..data" / "token"
                times = token.stat()
                token.write_text("newer")  # of the same length, and the clock does not move
                os.utime(token, ns=(times.st_atime_ns, times.st_mtime_ns))
                api.tokens = {"newer"}
                await client.get(paths.pods())
        assert api.requests[-1].headers["Authorization"] == "Bearer newer"

    async def test_an_expired_token_is_reported_with_its_folder(
        self,
        folder: pathlib.Path,
        authority: Authority,
        tmp_path: pathlib.Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        async with ScriptedApi(tls=authority.server(tmp_path, "127.0.0.1")) as api:
            api.tokens = {"other"}
            found = self.find(api, folder, monkeypatch)
            async with Client(found, user_agent="t") as client:
                with pytest.raises(errors.Unauthorized, match="expired or revoked") as raised:
                    await client.get(paths.pods())
        assert str(folder) in str(raised.value)
        assert len(api.requests) == 1  # the same token a second time would not help

    async def test_a_new_authority_is_trusted_without_a_restart(
        self,
        folder: pathlib.Path,
        authority: Authority,
        tmp_path: pathlib.Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        newer = Authority("newer")
        async with ScriptedApi(tls=newer.server(tmp_path, "127.0.0.1")) as api:
            found = self.find(api, folder, monkeypatch)
            async with Client(found, user_agent="t") as client:
                with pytest.raises(errors.Unreachable, match="not trusted"):
                    await client.get(paths.pods())
                self.mount(folder, 2, "second", newer.pem)
                await client.get(paths.pods())


class TestPrograms:
    """Credentials from a program that the kubeconfig names."""

    V1 = "client.authentication.k8s.io/v1"

    def user(self, script: pathlib.Path, text: str, **more: object) -> dict[str, object]:
        script.write_text(f"#!{sys.executable}\nimport json, os, sys\n{text}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return {"exec": {"apiVersion": self.V1, "command": f"./{script.name}", **more}}

    def answer(self, status: str, version: str = V1) -> str:
        return (
            "print(json.dumps({'kind': 'ExecCredential', "
            f"'apiVersion': '{version}', 'status': {status}}}))"
        )

    async def test_a_token_is_asked_for_once_and_kept(self, tmp_path: pathlib.Path) -> None:
        async with ScriptedApi() as api:
            text = (
                "open(sys.argv[1], 'a').write(os.environ['KUBERNETES_EXEC_INFO'] + '\\n')\n"
                + self.answer("{'token': os.environ['WORD']}")
            )
            calls = tmp_path / "calls"
            user = self.user(
                tmp_path / "plugin",
                text,
                args=[str(calls)],
                env=[{"name": "WORD", "value": "secret"}],
                provideClusterInfo=True,
            )
            path = kubeconfigs.write(tmp_path / "c", cluster={"server": api.url}, user=user)
            async with Client(access.find(path), user_agent="t") as client:
                await client.get(paths.pods())
                await client.get(paths.pods())
        (request,) = [json.loads(line) for line in calls.read_text().splitlines()]
        assert request["kind"] == "ExecCredential"
        assert request["spec"] == {"interactive": False, "cluster": {"server": api.url}}
        assert {r.headers["Authorization"] for r in api.requests} == {"Bearer secret"}

    async def test_a_refused_token_makes_it_run_again_once(self, tmp_path: pathlib.Path) -> None:
        text = f"path = {str(tmp_path / 'count')!r}\nopen(path, 'a').write('x')\n" + self.answer(
            "{'token': f't{len(open(path).read())}'}"
        )
        async with ScriptedApi() as api:
            user = self.user(tmp_path / "plugin", text)
            path = kubeconfigs.write(tmp_path / "c", cluster={"server": api.url}, user=user)
            async with Client(access.find(path), user_agent="t") as client:
                api.tokens = {"t2"}
                await client.get(paths.pods())
                api.tokens = {"none"}
                with pytest.raises(errors.Unauthorized):
                    await client.get(paths.pods())
        shown = [request.headers["Authorization"][-2:] for request in api.requests]
        assert shown == ["t1", "t2", "t2", "t3"]

    async def test_an_answer_is_used_until_the_end_that_it_names(
        self, tmp_path: pathlib.Path
    ) -> None:
        text = (
            f"path = {str(tmp_path / 'count')!r}\n"
            "open(path, 'a').write('x')\n"
            "n = len(open(path).read())\n"
            "end = '2020-01-01T00:00:00Z' if n == 1 else '2999-01-01T00:00:00Z'\n"
            + self.answer("{'token': f't{n}', 'expirationTimestamp': end}")
        )
        async with ScriptedApi() as api:
            user = self.user(tmp_path / "plugin", text)
            path = kubeconfigs.write(tmp_path / "c", cluster={"server": api.url}, user=user)
            async with Client(access.find(path), user_agent="t") as client:
                for _ in range(3):
                    await client.get(paths.pods())
        shown = [request.headers["Authorization"][-2:] for request in api.requests]
        assert shown == ["t1", "t2", "t2"]

    async def test_a_certificate_will_do_as_well(
        self, tmp_path: pathlib.Path, authority: Authority
    ) -> None:
        pair = authority.issue("me")
        status = {"clientCertificateData": pair.certificate, "clientKeyData": pair.key}
        async with ScriptedApi(tls=authority.server(tmp_path, "127.0.0.1", clients=True)) as api:
            cluster = {"server": api.url, "certificate-authority-data": data(authority.pem)}
            user = self.user(tmp_path / "plugin", self.answer(repr(status)))
            path = kubeconfigs.write(tmp_path / "c", cluster=cluster, user=user)
            await ask(access.find(path))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("print('not a credential')", "wrote no ExecCredential"),
            ("sys.exit('log in first')", "code 1: log in first"),
            (
                "print(json.dumps({'kind': 'ExecCredential', 'apiVersion': 'x/v9'}))",
                "ExecCredential of x/v9",
            ),
            (
                "v = 'client.authentication.k8s.io/v1'; "  # noqa: ISC004 - one script
                "print(json.dumps({'kind': 'ExecCredential', 'apiVersion': v, 'status': {}}))",
                "neither a token nor a certificate",
            ),
        ],
    )
    async def test_a_program_that_fails_is_quoted(
        self, tmp_path: pathlib.Path, text: str, message: str
    ) -> None:
        user = self.user(tmp_path / "plugin", text)
        path = kubeconfigs.write(
            tmp_path / "c", cluster={"server": "http://127.0.0.1:1"}, user=user
        )
        with pytest.raises(errors.AccessError) as raised:
            await ask(access.find(path))
        assert message in str(raised.value)
        assert path in str(raised.value)

    async def test_a_program_that_is_not_there_is_reported_with_its_hint(
        self, tmp_path: pathlib.Path
    ) -> None:
        user = {
            "exec": {"apiVersion": self.V1, "command": "no-such-program", "installHint": "get it"}
        }
        path = kubeconfigs.write(
            tmp_path / "c", cluster={"server": "http://127.0.0.1:1"}, user=user
        )
        with pytest.raises(errors.AccessError, match=r"no-such-program: cannot be run.*get it"):
            await ask(access.find(path))

    async def test_a_program_that_hangs_is_ended(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(credentials, "_TIMEOUT", 0.2)
        user = self.user(tmp_path / "plugin", "import time; time.sleep(60)")
        path = kubeconfigs.write(
            tmp_path / "c", cluster={"server": "http://127.0.0.1:1"}, user=user
        )
        with pytest.raises(errors.AccessError, match="no answer within"):
            await ask(access.find(path))
