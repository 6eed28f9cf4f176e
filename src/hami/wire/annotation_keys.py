"""Annotation and label keys that no vendor owns.

Only the keys: other modules of this package read and write the values. The keys of vendors are in
the table of `hami.vendors`.
"""

from __future__ import annotations

# Node.
NODE_LOCK = "hami.io/mutex.lock"
#: The UID of the pod that NODE_LOCK names, written with it.
NODE_LOCK_OWNER = "hami.io/lock-owner"
#: Forms of grants, and ids of keys, that the node's agent verifies; written by the agent.
NODE_GRANT_FORMS = "hami.io/node-grant-forms"
#: Keys of this node that `hami simulate-devices` has written, separated by commas.
SIMULATED = "hami.io/simulated-devices"
# On nodes, and for old kube-schedulers on pods: a change requeues unschedulable pods.
REQUEUE = "hami.io/scheduler-wake-up"

# Pod, written by the scheduler.
ASSIGNED_NODE = "hami.io/vgpu-node"
ASSIGNED_TIME = "hami.io/vgpu-time"
BIND_PHASE = "hami.io/bind-phase"
BIND_TIME = "hami.io/bind-time"
GRANT_MAC = "hami.io/grant-mac"
#: NVIDIA's device list, which GRANT_MAC signs in every form.
SIGNED_DEVICES = "hami.io/vgpu-devices-allocated"
MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
EXPLANATION = "hami.io/explanation"
#: An order to change a running pod's shares (`hami.wire.grant`), and its signature.
RESIZE = "hami.io/vgpu-resize"
RESIZE_MAC = "hami.io/vgpu-resize-mac"

# Pod, written by its node.
#: The agent's answer to RESIZE: what the pod counts with (`hami.wire.grant`).
RESIZED = "hami.io/vgpu-resized"

# Pod, written by its node; the values are in `hami.wire.pod_marks`.
#: The monitor's: it has more of a card than it was given.
OVERUSE = "hami.io/overuse"
#: The agent's: its start was refused again and again.
START_REFUSED = "hami.io/start-refused"

# Pod, written by admission.
#: MIG profiles that were replaced, as `3g.30gb->2g.20gb`; the key is that of the first webhook.
FALLBACK = "gpu-webhook.k8s.io/fallback"

# Pod, written by its user.
NODE_POLICY = "hami.io/node-scheduler-policy"
GPU_POLICY = "hami.io/gpu-scheduler-policy"
SCORING_WEIGHTS = "hami.io/device-scoring-weights"

# Pod, written by kubelet: a static pod's image in the API.
MIRROR = "kubernetes.io/config.mirror"

# Pod, a label of the cluster's gang scheduler.
POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"

# Pod of the scheduler itself.
ROLE_LABEL = "hami.io/scheduler-role"
COMPONENT_LABEL = "app.kubernetes.io/component"
LEADING_SINCE = "hami.io/leading-since"
