"""Kubeconfig files: which server, which authority, which identity.

Several files are laid over each other as kubectl does it: of clusters, users and contexts the first
file that names one counts, and so does the first current-context. Paths start at their file.
What we do not support is refused by name, instead of being left out and failing later with a 401.
"""

from __future__ import annotations

import base64
import binascii
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import yaml

from hami.kube import credentials, errors, transport

T = TypeVar("T")


class _Cluster(msgspec.Struct, frozen=True, rename="kebab"):
    server: str | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None
    extensions: list[dict[str, Any]] | None = None


class _EnvVar(msgspec.Struct, frozen=True):
    name: str
    value: str = ""


class _Exec(msgspec.Struct, frozen=True, rename="camel"):
    command: str
    api_version: str | None = None
    args: list[str] | None = None
    env: list[_EnvVar] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool | None = None
    interactive_mode: str | None = None


class _User(msgspec.Struct, frozen=True, rename="kebab"):
    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    exec: _Exec | None = None
    username: str | None = None
    auth_provider: dict[str, Any] | None = None
    as_: str | None = msgspec.field(name="as", default=None)


class _Context(msgspec.Struct, frozen=True):
    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: _Cluster | None = None


class _NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: _User | None = None


class _NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: _Context | None = None


class _Document(msgspec.Struct, frozen=True, rename="kebab"):
    current_context: str | None = None
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


class _Found(Generic[T]):
    """An entry and the file that it is in."""

    def __init__(self, path: str, name: str, value: T) -> None:
        self.path = path
        self.name = name
        self.value = value

    def resolve(self, path: str) -> str:
        return str(pathlib.Path(self.path).parent / path)


class _Config:
    """Some files, the first of them on top."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.current: str | None = None
        self.clusters: dict[str, _Found[_Cluster]] = {}
        self.users: dict[str, _Found[_User]] = {}
        self.contexts: dict[str, _Found[_Context]] = {}

    def add(self, path: str, document: _Document) -> None:
        self.paths.append(path)
        self.current = self.current or document.current_context
        for cluster in document.clusters or ():
            found = _Found(path, cluster.name, cluster.cluster or _Cluster())
            self.clusters.setdefault(cluster.name, found)
        for user in document.users or ():
            self.users.setdefault(user.name, _Found(path, user.name, user.user or _User()))
        for context in document.contexts or ():
            found_context = _Found(path, context.name, context.context or _Context())
            self.contexts.setdefault(context.name, found_context)

    @property
    def source(self) -> str:
        return os.pathsep.join(self.paths)


def load(
    paths: Sequence[str], *, context: str = "", some_may_be_missing: bool = False
) -> transport.Access:
    """Return the access that a context of these files gives; unnamed, it is the current one."""
    config = _Config()
    for path in paths:
        if some_may_be_missing and len(paths) > 1 and not pathlib.Path(path).exists():
            continue
        config.add(path, _read(path))
    if not config.paths:
        raise errors.AccessError(
            os.pathsep.join(paths), "none of these files exists", "correct $KUBECONFIG or unset it"
        )
    config.current = context or config.current
    return _access(config)


def _read(path: str) -> _Document:
    try:
        data = yaml.safe_load(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        raise credentials.unreadable(path, error) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise errors.AccessError(
            path, f"is not valid YAML: {errors.cut(problem)}", "correct that line"
        ) from error
    try:
        return msgspec.convert(data if data is not None else {}, _Document)
    except (msgspec.ValidationError, RecursionError) as error:
        raise errors.AccessError(
            path, f"is not a kubeconfig: {error}", "is this the right file?"
        ) from error


def _access(config: _Config) -> transport.Access:
    if not config.current:
        raise errors.AccessError(
            config.source,
            f"no current-context is set; there is {_names(config.contexts)}",
            "set one with: kubectl config use-context NAME",
        )
    context = _entry(config, "context", config.contexts, config.current)
    if not context.value.cluster:
        raise errors.AccessError(
            context.path, f"context {context.name!r} names no cluster", "name one"
        )
    cluster = _entry(config, "cluster", config.clusters, context.value.cluster)
    user = (
        _entry(config, "user", config.users, context.value.user)
        if context.value.user
        else _Found(context.path, "", _User())
    )
    server = _server(cluster)
    authority = _source(
        cluster,
        "certificate-authority",
        cluster.value.certificate_authority,
        cluster.value.certificate_authority_data,
    )
    if authority is not None:
        authority.text()  # read now: a missing file is an error at the start
    return transport.Access(
        server,
        identities=_identities(user, cluster),
        authority=authority,
        verify=not cluster.value.insecure_skip_tls_verify,
        server_name=cluster.value.tls_server_name or "",
        namespace=context.value.namespace or "",
        origin=f"{context.path}, context {context.name!r}",
    )


def _server(cluster: _Found[_Cluster]) -> str:
    server = cluster.value.server or ""
    if not server:
        raise errors.AccessError(
            cluster.path, f"cluster {cluster.name!r} has no server", "add its address"
        )
    if not server.startswith(("https://", "http://")):
        raise errors.AccessError(
            cluster.path,
            f"cluster {cluster.name!r} has the server {server!r}",
            "write it as https://HOST:PORT",
        )
    if cluster.value.proxy_url:
        raise errors.AccessError(
            cluster.path,
            f"cluster {cluster.name!r} is behind the proxy {cluster.value.proxy_url!r}",
            "proxy-url is not supported; name a server that can be reached directly",
        )
    return server


def _identities(user: _Found[_User], cluster: _Found[_Cluster]) -> credentials.Identities:
    value = user.value
    for field, given in (
        ("auth-provider", value.auth_provider),
        ("username", value.username),
        ("as", value.as_),
    ):
        if given:
            raise errors.AccessError(
                user.path,
                f"user {user.name!r} has {field!r}, which is not supported",
                "give it a token, a client certificate or an exec program",
            )
    token: credentials.Source | None = credentials.Text(value.token) if value.token else None
    if token is None and value.token_file:
        token = credentials.File(user.resolve(value.token_file))
    certificate = _source(
        user, "client-certificate", value.client_certificate, value.client_certificate_data
    )
    key = _source(user, "client-key", value.client_key, value.client_key_data)
    if (certificate is None) != (key is None):
        raise errors.AccessError(
            user.path,
            f"user {user.name!r} has only one of client-certificate and client-key",
            "give both or neither",
        )
    if value.exec and token is None and certificate is None:
        plugin = _plugin(user, value.exec, cluster)
        return credentials.FromProgram(plugin, source=f"{user.path}, user {user.name!r}")
    for source in (token, certificate, key):
        if source is not None:
            source.text()
    return credentials.FromFiles(token=token, certificate=certificate, key=key)


def _plugin(user: _Found[_User], program: _Exec, cluster: _Found[_Cluster]) -> credentials.Plugin:
    where = f"user {user.name!r}: exec"
    if program.api_version not in credentials.VERSIONS:
        raise errors.AccessError(
            user.path,
            f"{where}.apiVersion is {program.api_version!r}",
            f"use {' or '.join(credentials.VERSIONS)}",
        )
    if program.interactive_mode == "Always":
        raise errors.AccessError(
            user.path,
            f"{where} {program.command!r} asks the user (interactiveMode: Always)",
            "use credentials that ask no questions",
        )
    return credentials.Plugin(
        # As kubectl: a bare name is searched in $PATH, a relative path starts at the file.
        command=user.resolve(program.command) if "/" in program.command else program.command,
        api_version=program.api_version,
        arguments=tuple(program.args or ()),
        environment={variable.name: variable.value for variable in program.env or ()},
        cluster=_cluster_info(cluster) if program.provide_cluster_info else None,
        install_hint=program.install_hint or "",
    )


def _cluster_info(cluster: _Found[_Cluster]) -> Mapping[str, object]:
    authority = _source(
        cluster,
        "certificate-authority",
        cluster.value.certificate_authority,
        cluster.value.certificate_authority_data,
    )
    info: dict[str, object] = {"server": cluster.value.server}
    if authority is not None:
        info["certificate-authority-data"] = base64.b64encode(authority.text().encode()).decode()
    if cluster.value.insecure_skip_tls_verify:
        info["insecure-skip-tls-verify"] = True
    if cluster.value.tls_server_name:
        info["tls-server-name"] = cluster.value.tls_server_name
    for extension in cluster.value.extensions or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = extension.get("extension")
    return info


def _source(
    entry: _Found[Any], field: str, path: str | None, data: str | None
) -> credentials.Source | None:
    """Return the PEM of a field; the inline data counts where both are given, as with kubectl."""
    if data:
        try:
            text = base64.b64decode("".join(data.split()), validate=True).decode("ascii")
            return credentials.Text(text)
        except (binascii.Error, UnicodeError) as error:
            raise errors.AccessError(
                entry.path, f"{field}-data of {entry.name!r} is not base64 of PEM", "correct it"
            ) from error
    return credentials.File(entry.resolve(path)) if path else None


def _entry(config: _Config, kind: str, entries: Mapping[str, _Found[T]], name: str) -> _Found[T]:
    if name not in entries:
        raise errors.AccessError(
            config.source,
            f"has no {kind} named {name!r}; there is {_names(entries)}",
            f"correct the name, or add the {kind}",
        )
    return entries[name]


def _names(entries: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in entries) or "none"
