"""Behaviour of driver and card on which libvgpu's rules depend.

They are asked without any preload. Prints one line per fact as it is found and writes all of them
to facts.json in the folder $OUT (or build/gpu). Each fact stands alone: one that fails says so and
the rest go on.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.gpu import abi_check, symbols, timing
from tests.gpu.driver import HEAP_SIZE, MIB, STACK_SIZE, Cuda, Nvml
from tests.gpu.workers import ROOT, Worker

Fact = dict[str, Any]


class Asking:
    def __init__(self, folder: Path) -> None:
        self.nvml = Nvml()
        self.loops = timing.build(folder)

    def mib(self, worker: Worker) -> float:
        """Return what NVML counts for a worker."""
        return round(self.nvml.processes().get(worker.pid, 0) / MIB, 2)

    def started(self) -> Worker:
        worker = Worker()
        worker.ask("start")
        return worker


def context(asking: Asking) -> Fact:
    start = time.perf_counter()
    Nvml()
    again = (time.perf_counter() - start) * 1e3
    with Worker() as worker:
        init = worker.ask("init")
        after_init = asking.mib(worker)
        make = worker.ask("start")
        cost = asking.mib(worker)
        start = time.perf_counter()
        for _ in range(1000):
            asking.nvml.processes()
        listing = (time.perf_counter() - start) * 1e3
        view = worker.ask("nvml_view")
    return {
        "cuInit ms": init,
        "pid MiB after cuInit": after_init,
        "context ms": make,
        "context MiB": cost,
        "nvmlInit again ms": again,
        "NVML process list us": listing,
        "pids seen by the process itself": view["processes"],
        "its pid": worker.pid,
        "device used MiB with only this context": view["used"] / MIB,
    }


def streams(asking: Asking) -> Fact:
    with asking.started() as worker:
        found = {"0": asking.mib(worker)}
        for count, more in ((1, 1), (2, 1), (8, 6), (32, 24), (128, 96), (512, 384)):
            worker.ask("fill", "stream", 1, count=more)
            found[str(count)] = asking.mib(worker)
        worker.ask("empty")
        found["destroyed"] = asking.mib(worker)
        worker.ask("fill", "stream", 1, count=128)
        found["128 again"] = asking.mib(worker)
    return found


def shared(asking: Asking, kind: str) -> Fact:
    size = 512 * MIB
    maker, taker = asking.started(), asking.started()
    try:
        found: Fact = {"before": [asking.mib(maker), asking.mib(taker)]}
        device = asking.nvml.memory()[2]
        if kind == "vmm":
            address = maker.ask("share_vmm", size)
            found["made"] = [asking.mib(maker), asking.mib(taker)]
            taker.send_descriptor(maker.receive_descriptor())
            there = taker.ask("take_vmm", size)
        else:
            address, handle = maker.ask("share_ipc", size)
            found["made"] = [asking.mib(maker), asking.mib(taker)]
            there = taker.ask("take_ipc", handle)
        found["taken"] = [asking.mib(maker), asking.mib(taker)]
        found["device grew MiB"] = (asking.nvml.memory()[2] - device) / MIB
        maker.ask("fill_bytes", address, MIB, 42)
        found["taker reads 42"] = taker.ask("first_byte", there) == 42
        maker.kill()
        time.sleep(0.3)
        found["maker killed"] = [asking.mib(maker), asking.mib(taker)]
        found["device less one context MiB"] = (asking.nvml.memory()[2] - device) / MIB
        try:
            found["taker still reads 42"] = taker.ask("first_byte", there) == 42
        except Exception as error:  # noqa: BLE001  what happens here is the fact
            found["taker still reads 42"] = str(error)
        taker.ask("empty")
        found["taker gave back"] = asking.mib(taker)
    finally:
        maker.kill()
        taker.kill()
    return found


def costs(asking: Asking) -> Fact:
    if asking.loops is None:
        return {"skipped": "no C compiler"}
    library = str(asking.loops)
    with asking.started() as worker:
        found: Fact = {}
        for size, name in ((65536, "64 KiB"), (2 * MIB, "2 MiB"), (64 * MIB, "64 MiB")):
            worker.ask("times", library, "alloc_free", size, 100)
            found[f"cuMemAlloc+Free {name} ns"] = worker.ask(
                "times", library, "alloc_free", size, 500
            )
        found["default pool 1 MiB"] = worker.ask("pool_times", library, MIB, 20_000)
        found["default pool 64 KiB"] = worker.ask("pool_times", library, 65536, 20_000)
        found["launch ns"] = worker.ask("launch_times", library, 1000)
        found["cuMemGetInfo ns"] = worker.ask("times", library, "info", 2000)
        found["alloc+free 4 KiB ns by live"] = worker.ask(
            "live_times", library, 4096, [0, 1000, 10_000, 100_000], timeout=60
        )
    return found


def lazy_loading(asking: Asking) -> Fact:
    with asking.started() as worker:
        worker.ask("prepare_scratch")
        found = {"before": asking.mib(worker)}
        start = time.perf_counter()
        worker.ask("library", 64, 1000, timeout=60)
        found["library loaded (s)"] = time.perf_counter() - start
        found["library loaded, kernel handle"] = asking.mib(worker)
        worker.ask("kernel_attribute")
        found["cuKernelGetAttribute LOCAL_SIZE"] = asking.mib(worker)
        worker.ask("kernel_function")
        found["cuKernelGetFunction"] = asking.mib(worker)
        worker.ask("local_size", "many")
        found["cuFuncGetAttribute LOCAL_SIZE"] = asking.mib(worker)
        worker.ask("run", "many")
        found["launched"] = asking.mib(worker)
        worker.ask("load", "static", "static", 96 * MIB)
        found["module with 96 MiB static, function and attribute asked"] = asking.mib(worker)
        worker.ask("run", "static")
        found["launched it"] = asking.mib(worker)
    return found


def graphs(asking: Asking) -> Fact:
    def state(worker: Worker) -> list[float]:
        return [worker.ask("graph_reserved") / MIB, asking.mib(worker)]

    with asking.started() as worker:
        found = {"before": state(worker)}
        first = worker.ask("instantiate_graph", [100 * MIB], freed=True)
        second = worker.ask("instantiate_graph", [100 * MIB], freed=True)
        found["two of 100 MiB instantiated"] = state(worker)
        worker.ask("launch_made", first)
        found["first launched"] = state(worker)
        worker.ask("launch_made", second)
        found["second launched (frees at its end)"] = state(worker)
        third = worker.ask("instantiate_graph", [40 * MIB, 40 * MIB], freed=True)
        worker.ask("launch_made", third)
        found["one of 2 x 40 MiB launched"] = state(worker)
        fourth = worker.ask("instantiate_graph", [100 * MIB], freed=False)
        found["100 MiB that is kept, instantiated"] = state(worker)
        worker.ask("launch_made", fourth)
        found["launched"] = state(worker)
        worker.ask("trim")
        found["trimmed"] = state(worker)
        worker.ask("destroy_made", first)
        worker.ask("destroy_made", second)
        worker.ask("trim")
        found["two destroyed, trimmed"] = state(worker)
    with asking.started() as worker:
        graph = worker.ask("instantiate_graph", [MIB] * 8, freed=True)
        worker.ask("launch_made", graph)
        found["8 x 1 MiB at once"] = state(worker)
    return found


def killed(asking: Asking) -> Fact:
    """How long NVML lists a process after kill -9, with 8 GiB and with its context alone."""
    found: Fact = {}
    for gib in (0, 1, 8, 32):
        worker = asking.started()
        if gib:
            worker.ask("fill", "linear", 64 * MIB, most=gib << 30)
        worker.process.kill()
        start = time.perf_counter()
        times: dict[str, float] = {}
        last = -1.0
        while time.perf_counter() - start < 5:
            listed = asking.nvml.processes()
            now = (time.perf_counter() - start) * 1e3
            value = listed.get(worker.pid, -1) / MIB
            if worker.pid in listed and value != last:
                times[f"{value:.0f} MiB first seen ms"] = round(now, 2)
                last = value
            if "waitable ms" not in times and worker.process.poll() is not None:
                times["waitable ms"] = round(now, 2)
            if worker.pid not in listed:
                times["not listed ms"] = round(now, 2)
                break
        worker.kill()
        found[f"{gib} GiB"] = times
    return found


def names(asking: Asking) -> Fact:
    cuda = Cuda()
    cuda.call("cuInit", 0)
    exported = symbols.exported(symbols.loaded("libcuda.so.1"))
    nvml = symbols.exported(symbols.loaded("libnvidia-ml.so.1"))
    table = symbols.table()
    ours = table["HOOK"] | table["NEED"]
    addresses = {cuda.address(name): name for name in sorted(exported) if name.startswith("cu")}
    strangers = []
    asked = 0
    seen = set()
    for name in sorted({re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", name) for name in exported}):
        for version in range(11000, 13001, 100):
            for flags in (1, 2):
                pointer, status = ctypes.c_void_p(), ctypes.c_int()
                code = cuda.library.cuGetProcAddress_v2(
                    name.encode(),
                    ctypes.byref(pointer),
                    version,
                    ctypes.c_uint64(flags),
                    ctypes.byref(status),
                )
                if code or not pointer.value or (name, pointer.value) in seen:
                    continue
                seen.add((name, pointer.value))
                asked += 1
                if pointer.value not in addresses:
                    strangers.append(f"{name} at {version}, flags {flags}")
    unhooked = re.compile("Alloc|Create|Mem.*Import|Pool|Register|Instantiate|Load|Green|Multicast")
    same: dict[int, list[str]] = {}
    for name in sorted(table["HOOK"] & exported):
        same.setdefault(cuda.address(name), []).append(name)
    return {
        "exported cu names": len(addresses),
        "ours missing in libcuda": sorted(ours - exported),
        "ours missing in libnvidia-ml": sorted((table["NVML_HOOK"] | table["NVML_NEED"]) - nvml),
        "distinct pointers of cuGetProcAddress": asked,
        "pointers that are no exported symbol": strangers,
        "hooked names that share an address": [same[a] for a in same if len(same[a]) > 1],
        "not hooked": sorted(
            name for name in exported - ours if name.startswith("cu") and unhooked.search(name)
        ),
    }


def headers(asking: Asking) -> Fact:
    return {"numbers compared": abi_check.count(), "differences": abi_check.differences()}


def local_memory(asking: Asking) -> Fact:
    found: Fact = {}
    with asking.started() as worker:
        worker.ask("prepare_scratch")
        found["before"] = asking.mib(worker)
        found["local bytes"] = worker.ask("load", "four", "local", 4096)
        found["4 KiB kernel loaded"] = asking.mib(worker)
        worker.ask("run", "four")
        found["4 KiB kernel ran"] = asking.mib(worker)
        found["stack limit now"] = worker.ask("get_limit", STACK_SIZE)
        worker.ask("load", "empty", "empty")
        worker.ask("run", "empty")
        found["empty kernel ran after it"] = asking.mib(worker)
        worker.ask("set_limit", STACK_SIZE, 1024)
        found["limit set to 1024"] = asking.mib(worker)
        worker.ask("set_limit", STACK_SIZE, 2048)
        found["limit set to 2048"] = asking.mib(worker)
    with asking.started() as worker:
        worker.ask("prepare_scratch")
        worker.ask("load", "empty", "empty")
        found["stack: before"] = asking.mib(worker)
        worker.ask("set_limit", STACK_SIZE, 16384)
        found["stack: limit 16 KiB set"] = asking.mib(worker)
        worker.ask("run", "empty")
        found["stack: empty kernel ran"] = asking.mib(worker)
        worker.ask("set_limit", STACK_SIZE, 1024)
        found["stack: limit back"] = asking.mib(worker)
    with asking.started() as worker:
        worker.ask("prepare_scratch")
        worker.ask("load", "empty", "empty")
        found["heap: limit as it is"] = worker.ask("get_limit", HEAP_SIZE)
        found["heap: before"] = asking.mib(worker)
        worker.ask("set_limit", HEAP_SIZE, 1 << 30)
        found["heap: 1 GiB set"] = asking.mib(worker)
        worker.ask("run", "empty")
        found["heap: empty kernel ran"] = asking.mib(worker)
        worker.ask("load", "static", "static", 2 * MIB)
        worker.ask("run", "static")
        found["heap: another module ran"] = asking.mib(worker)
    return found


def arrays(asking: Asking) -> Fact:
    """Whether what the driver counts for small arrays stays as the rule says, and graph arrays."""
    found: Fact = {}
    for api, size, count in (
        ("array2d", 64 * 1024, 200),
        ("array2d", 700 * 1024, 20),
        ("array2d", 3 * MIB, 10),
        ("array3d", 5 * MIB, 10),
        ("mipmap", 5 * MIB, 10),
        ("mipmap", 300 * 1024, 20),
        ("pitch", 3 * MIB, 10),
    ):
        with asking.started() as worker:
            before = asking.mib(worker)
            made = worker.ask("fill", api, size, count=count)
            grown = asking.mib(worker) - before
            worker.ask("empty")
            kept = asking.mib(worker) - before
        found[f"{made['count']} {api} of {size >> 10} KiB"] = [grown, "kept", kept]
    return found


FACTS: dict[str, Callable[[Asking], Fact]] = {
    "c context": context,
    "i headers": headers,
    "h names": names,
    "b streams": streams,
    "a vmm shared [maker, taker]": lambda asking: shared(asking, "vmm"),
    "a ipc shared [maker, taker]": lambda asking: shared(asking, "ipc"),
    "d costs": costs,
    "e lazy loading": lazy_loading,
    "f graphs [reserved, pid]": graphs,
    "g killed": killed,
    "j k local memory, stack, heap": local_memory,
    "arrays": arrays,
}


def main() -> None:
    folder = Path(os.environ.get("OUT") or ROOT / "build" / "gpu")
    folder.mkdir(parents=True, exist_ok=True)
    asking = Asking(folder)
    found: dict[str, Fact] = {
        "card": {
            "name": asking.nvml.name(),
            "driver": asking.nvml.driver(),
            "memory": asking.nvml.memory(),
        }
    }
    began = time.perf_counter()
    for name, fact in FACTS.items():
        if len(sys.argv) > 1 and not any(name.startswith(part) for part in sys.argv[1:]):
            continue
        try:
            found[name] = fact(asking)
        except Exception:  # noqa: BLE001  one fact that fails must not cost the others
            found[name] = {"FAILED": traceback.format_exc()[-900:]}
        sys.stdout.write(f"[{time.perf_counter() - began:.1f}s] {name}\n")
        for key, value in found[name].items():
            sys.stdout.write(f"    {key}: {json.dumps(value)}\n")
        sys.stdout.flush()
        (folder / "facts.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
