"""A MIG offer that tests fill without informers."""

from __future__ import annotations

from collections.abc import Mapping

from hami.admission import main
from hami.admission.mig_offer import MigOffer
from hami.kube.store import Store
from hami.wire import objects


class FilledOffer(MigOffer):
    def __init__(self, gpu: str) -> None:
        super().__init__(gpu)
        #: Stores whose changes it handles.
        self.nodes = Store(main.node_reader(self), kind="nodes")
        self.pods = Store(main.pod_reader(self, [""]), kind="pods")
        self.nodes.add_handler(self.on_node)
        self.pods.add_handler(self.on_pod)

    def set_node(self, name: str, allocatable: Mapping[str, objects.Amount | None]) -> None:
        status = objects.NodeStatus(allocatable=dict(allocatable))
        offered = self.offered(objects.Node(status=status))
        self.nodes.put(main.WatchedNode(name, name, 0, offered))

    def set_pod(self, uid: str, pod: objects.Pod | None) -> None:
        if pod is None:
            self.pods.drop(uid)
        else:
            self.pods.put(main.WatchedPod(uid, "", uid, 0, pod.node_name, self.held(pod)))
