"""Measure what it costs to verify grants, and to look again at /bind.

    python -m benchmarks.grants [--nodes 5000] [--pods 100000] [--rounds 3]

Verifying: bound pods are decoded from JSON and read, as at the scheduler's start; the baseline are
the same pods, decoded and read without keys. Looking again: the check of the cards that are held
for a pod, right before its Binding; the baseline is deciding the pod again on its node. The best of
a few rounds counts. Times on a shared machine are noise, the ratios are not.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
import time
from collections.abc import Callable, Sequence

import msgspec

from benchmarks import fleet
from hami.cluster import state
from hami.cluster.state import Cluster
from hami.placement import decide, recheck, request
from hami.scheduler.grants import GrantVerifier
from hami.serving.grant_keys import KeyFolder
from hami.wire import annotation_keys, codec, objects, signature

KEY = b"k" * signature.KEY_BYTES
SHARE = fleet.pod("a", [{"gpu": 1, "memory": 8000, "cores": 10}])
LOOKS = 1000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grants", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    bodies = _signed_pods(arguments.pods, arguments.nodes)
    _verifying(bodies, arguments.rounds)
    _looking_again(bodies, arguments.nodes, arguments.rounds)


def _signed_pods(number: int, nodes: int) -> list[bytes]:
    keys = signature.GrantKeys(KEY)
    bodies = []
    for pod in fleet.placed_pods(number, nodes):
        assert pod.metadata is not None
        devices = pod.annotation(annotation_keys.SIGNED_DEVICES)
        mac = signature.sign(keys, uid=pod.uid, node=pod.node_name, devices=devices)
        annotations = {**pod.annotations, annotation_keys.GRANT_MAC: mac}
        metadata = msgspec.structs.replace(pod.metadata, annotations=annotations)
        bodies.append(codec.encode(msgspec.structs.replace(pod, metadata=metadata)))
    return bodies


def _verifying(bodies: Sequence[bytes], rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "current").write_bytes(KEY)
        verifier = GrantVerifier(KeyFolder(folder), allow_unsigned=False)
        plain, verifying = Cluster(fleet.VENDORS), Cluster(fleet.VENDORS, verify=verifier)

        def read_all(cluster: Cluster) -> None:
            for body in bodies:
                info, _ = cluster.read_pod(codec.decode(body, objects.Pod, what="pod"))
                assert info is not None
                assert not info.unproven

        slow, quick = _best(lambda: read_all(verifying), lambda: read_all(plain), rounds)
    print(f"reading {len(bodies)} bound pods")
    print(f"  without keys (baseline)   {quick * 1e3:9.1f} ms")
    print(f"  verified                  {slow * 1e3:9.1f} ms   {slow / quick:.2f}x the baseline")


def _looking_again(bodies: Sequence[bytes], nodes: int, rounds: int) -> None:
    cluster = Cluster(fleet.VENDORS)
    for node in fleet.nodes(nodes):
        cluster.observe_node(node)
    for body in bodies:
        cluster.observe_pod(codec.decode(body, objects.Pod, what="pod"))
    wanted = request.parse(SHARE, fleet.VENDORS, request.Defaults())
    assert wanted is not None
    winner = decide.decide(cluster, wanted).winner
    assert winner is not None
    held = decide.reservation(wanted, winner)
    cluster.apply(state.PutPod(held))
    decided_on = cluster.nodes[winner.node]

    def look() -> None:
        for _ in range(LOOKS):
            assert recheck.still_fits(cluster, held, decided_on)

    def decide_again() -> None:
        assert decide.decide(cluster, wanted, [winner.node]).winner is not None

    slow, quick = _best(decide_again, look, rounds)
    quick /= LOOKS
    print(f"before a Binding, {nodes} nodes, {len(bodies)} pods")
    print(f"  decided on its node again (baseline) {slow * 1e6:9.1f} us")
    print(f"  looked at again                      {quick * 1e6:9.1f} us   1/{slow / quick:.0f}")


def _best(
    first: Callable[[], None], second: Callable[[], None], rounds: int
) -> tuple[float, float]:
    """Return the best time of each; they take turns, so that both see the same machine."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for work, found in zip((first, second), times, strict=True):
            begin = time.perf_counter()
            work()
            found.append(time.perf_counter() - begin)
    return min(times[0]), min(times[1])


if __name__ == "__main__":
    main()
