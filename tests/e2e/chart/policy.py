"""The chart's admission policies in force, and accounts to try them.

The policies are what Helm makes of the templates, alone: no scheduler runs. Its account and the
agent's exist, with the rights that they need, so that tests can speak with their tokens. Every
other account has one right and no more, for what that right alone can do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Callable, Iterator, Mapping

from tests.chart import rendering
from tests.e2e import pods
from tests.e2e.cluster import fleet
from tests.e2e.cluster.cluster import Cluster
from tests.kubeapi.client import ApiError, Client, Object, wait_for
from tests.kubeapi.paths import core, group, namespaces, nodes
from tests.kubeapi.paths import pods as pods_path

RELEASE = "policies"
FULLNAME = f"{RELEASE}-hami"
POD_POLICY = f"{FULLNAME}-pod-annotations"
NODE_POLICY = f"{FULLNAME}-node-annotations"
SCHEDULER = f"{FULLNAME}-scheduler"
AGENT = f"{FULLNAME}-device-plugin"
TRUSTED = "other-vendor"
#: Hygon's device plugin; other vendors' have no account named.
PLUGIN = "dcu-plugin"
NODE = "node-1"
ELSEWHERE = "elsewhere"
"""A node that nobody serves, so that nothing happens to its pods but what a test does."""

ADMISSION = "admissionregistration.k8s.io/v1"
RBAC = "rbac.authorization.k8s.io/v1"
PATHS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
FORGED = {"metadata": {"annotations": {"hami.io/mutex.lock": "f", "hami.io/vgpu-node": "f"}}}
IN_FORCE_S = 30

_CHANGE = ["create", "patch", "update", "delete"]
_POD_WAYS = ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"]


def rendered(client: Client, namespace: str, *trusted: str) -> list[Object]:
    """Render the policies with real Helm for the server's version."""
    chart = rendering.render(
        {
            "admissionPolicy.trustedAccounts": [user_of(namespace, each) for each in trusted],
            "devices.hygon.pluginAccounts": [user_of(namespace, PLUGIN)],
        },
        kube=client.get("/version")["gitVersion"],
        release=RELEASE,
        namespace=namespace,
    )
    return [each for each in chart.objects if each["kind"] in PATHS]


def user_of(namespace: str, account: str) -> str:
    return f"system:serviceaccount:{namespace}:{account}"


@dataclasses.dataclass(frozen=True)
class Stage:
    """A namespace with pods and accounts, and the policies in force everywhere."""

    admin: Client
    namespace: str
    open: contextlib.ExitStack
    """Closes the connections of everybody who spoke."""

    def account(self, name: str, rights: Mapping[str, list[str]]) -> Client:
        """Make an account that may do this to pods and the like in the namespace; speak as it."""
        self.admin.create(core("serviceaccounts", self.namespace), {"metadata": {"name": name}})
        self._allow(name, rights, self.namespace)
        return self.speak_as(name)

    def _allow(self, name: str, rights: Mapping[str, list[str]], namespace: str | None) -> None:
        kind = "Role" if namespace else "ClusterRole"
        role = name if namespace else f"{FULLNAME}-{name}"
        meta = {"name": role}
        rules = [
            {"apiGroups": [""], "resources": [resource], "verbs": verbs}
            for resource, verbs in rights.items()
        ]
        subject = {"kind": "ServiceAccount", "name": name, "namespace": self.namespace}
        reference = {"apiGroup": RBAC.split("/", maxsplit=1)[0], "kind": kind, "name": role}
        self.admin.create(
            group(RBAC, f"{kind.lower()}s", namespace), {"metadata": meta, "rules": rules}
        )
        self.admin.create(
            group(RBAC, f"{kind.lower()}bindings", namespace),
            {"metadata": meta, "roleRef": reference, "subjects": [subject]},
        )

    @contextlib.contextmanager
    def allowed_on_nodes(self, *names: str) -> Iterator[None]:
        """Let accounts write nodes, which no role of a namespace can."""
        try:
            for name in names:
                self._allow(name, {"nodes": _CHANGE, "nodes/status": _CHANGE}, None)
            yield
        finally:
            for name in names:
                for kind in ("clusterrolebindings", "clusterroles"):
                    self.admin.delete(group(RBAC, kind, name=f"{FULLNAME}-{name}"))

    def speak_as(self, account: str, bound_to: Object | None = None) -> Client:
        """Give a client with a fresh token of an account, bound to an object or to none."""
        reference = bound_to and {
            "apiVersion": "v1",
            "kind": bound_to["kind"],
            "name": bound_to["metadata"]["name"],
            "uid": bound_to["metadata"]["uid"],
        }
        made = self.admin.create(
            core("serviceaccounts", self.namespace, account, "token"),
            {"spec": {"boundObjectRef": reference}},
        )
        return self.speak_with(made["status"]["token"])

    def speak_with(self, token: str) -> Client:
        return self.open.enter_context(self.admin.with_token(token))

    def trust(self, *accounts: str) -> None:
        """Upgrade the release to other values: the accounts that are trusted, all of them."""
        for document in rendered(self.admin, self.namespace, *accounts):
            self.admin.patch(_path(document), {"spec": document["spec"]})

    def user(self, account: str) -> str:
        return user_of(self.namespace, account)


@contextlib.contextmanager
def stage(cluster: Cluster) -> Iterator[Stage]:
    with cluster.joined_network(), cluster.client as admin, contextlib.ExitStack() as stack:
        made = Stage(admin, f"policy-{secrets.token_hex(4)}", stack)
        admin.create(namespaces(), {"metadata": {"name": made.namespace}})
        stack.callback(admin.delete, namespaces(made.namespace))
        pods.await_account(admin, made.namespace)
        status = {"capacity": fleet.CAPACITY, "allocatable": fleet.CAPACITY}
        admin.create(nodes(), {"metadata": {"name": ELSEWHERE}, "status": status})
        stack.callback(admin.delete, nodes(ELSEWHERE))
        everything = dict.fromkeys([*_POD_WAYS, "pods/binding"], _CHANGE)
        for name in (SCHEDULER, AGENT, TRUSTED, PLUGIN):
            made.account(name, everything)
        stack.enter_context(made.allowed_on_nodes(SCHEDULER, AGENT, TRUSTED, PLUGIN))
        stack.enter_context(_in_force(admin, rendered(admin, made.namespace, TRUSTED)))
        yield made


@contextlib.contextmanager
def _in_force(admin: Client, documents: list[Object]) -> Iterator[None]:
    """Apply the policies; the API server minds them, and their end, only a moment later."""
    with contextlib.ExitStack() as stack:
        stack.callback(
            wait_for, "the policies to be no more", lambda: not any(_refusals(admin)), IN_FORCE_S
        )
        for document in documents:
            admin.create(group(ADMISSION, PATHS[document["kind"]]), document)
            stack.callback(admin.delete, _path(document))
        wait_for("the policies to be in force", lambda: all(_refusals(admin)), IN_FORCE_S)
        yield


def _path(document: Object) -> str:
    return group(ADMISSION, PATHS[document["kind"]], name=document["metadata"]["name"])


def _refusals(admin: Client) -> list[bool]:
    """Whether a forged pod and a forged node are refused; nothing is written."""
    pod = pods.pod("forged") | {"metadata": {"name": "forged"} | FORGED["metadata"]}
    return [
        refuses(lambda: admin.create(pods_path("default"), pod, dryRun="All")),
        refuses(lambda: admin.patch(nodes(NODE), FORGED, dryRun="All")),
    ]


def refuses(write: Callable[[], Object]) -> bool:
    """Whether a policy refuses a write; if anybody else does, that is raised."""
    try:
        write()
    except ApiError as error:
        if FULLNAME not in error.message:
            raise
        return True
    return False
