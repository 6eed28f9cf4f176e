"""Measure what it costs to verify grants, and to look again at /bind.

    python -m benchmarks.grants [--nodes 5000] [--pods 100000] [--rounds 3]

Verifying: bound pods are decoded from JSON and read, as at the scheduler's start; the baseline are
the same pods, decoded and read without keys. Both forms of grants are verified, and v3 also as an
agent does, by the Ed25519 signature alone: that is what the HMAC beside it saves a scheduler.
Looking again: the check of the cards that are held for a pod, right before its Binding; the
baseline is deciding the pod again on its node. The best of a few rounds counts. Times on a shared
machine are noise, the ratios are not.
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
from hami.serving.grant_signature import SigningKey
from hami.vendors import table
from hami.wire import annotation_keys, codec, grant, objects, signature

KEY = b"k" * signature.KEY_BYTES
LISTS = table.device_lists(fleet.VENDORS)
SHARE = fleet.pod("a", [{"gpu": 1, "memory": 8000, "cores": 10}])
LOOKS = 1000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grants", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("current", "signing-current"):
            (pathlib.Path(folder) / name).write_bytes(KEY)
        public = SigningKey(KEY).public.content
        (pathlib.Path(folder) / "public-current").write_bytes(public)
        for form, key_id in KeyFolder(folder).keys().ids():
            bodies = _signed_pods(arguments.pods, arguments.nodes, folder, (form, key_id))
            _verifying(bodies, arguments.rounds, folder, form)
    _looking_again(bodies, arguments.nodes, arguments.rounds)


def _signed_pods(number: int, nodes: int, folder: str, reads: tuple[str, str]) -> list[bytes]:
    keys = KeyFolder(folder).keys()
    bodies = []
    for pod in fleet.placed_pods(number, nodes):
        assert pod.metadata is not None
        mac = keys.sign(grant.of_pod(pod, pod.node_name, LISTS), {reads})
        annotations = {**pod.annotations, annotation_keys.GRANT_MAC: mac}
        metadata = msgspec.structs.replace(pod.metadata, annotations=annotations)
        bodies.append(codec.encode(msgspec.structs.replace(pod, metadata=metadata)))
    return bodies


def _verifying(bodies: Sequence[bytes], rounds: int, folder: str, form: str) -> None:
    plain = Cluster(fleet.VENDORS)

    def verifying(*, signs: bool) -> Cluster:
        keys = KeyFolder(folder, signs=signs)
        verifier = GrantVerifier(keys, signed=LISTS, allow_unsigned=False)
        return Cluster(fleet.VENDORS, verify=verifier)

    def read_all(cluster: Cluster) -> None:
        for body in bodies:
            info, _ = cluster.read_pod(codec.decode(body, objects.Pod, what="pod"))
            assert info is not None
            assert not info.unproven

    verified = verifying(signs=True)
    slow, quick = _best(lambda: read_all(verified), lambda: read_all(plain), rounds)
    print(f"reading {len(bodies)} bound pods with grants of form {form}")
    print(f"  without keys (baseline)   {quick * 1e3:9.1f} ms")
    print(f"  verified                  {slow * 1e3:9.1f} ms   {slow / quick:.2f}x the baseline")
    if form == grant.V3:
        by_signature = verifying(signs=False)
        slowest, _ = _best(lambda: read_all(by_signature), lambda: None, 1)
        ratio = (slowest - quick) / (slow - quick)
        print(f"  by Ed25519 alone          {slowest * 1e3:9.1f} ms   {slowest / quick:.2f}x")
        print(f"  the HMAC spares           {ratio:.0f}x of the time to verify")


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
