"""Hooks and the driver's own functions, in every way of asking.

A small driver with all names (interception_driver.c) and a program that asks
(interception_program.c) are run with and without the preloaded library. What the program is told
without it is the driver's word; with it exactly the hooked names must lie in libvgpu.so, under the
same name.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hami.wire.file_layout import STATE
from native import build
from tests.native import building, container

HERE = Path(__file__).parent
DEFINITIONS = (build.SOURCES / "libvgpu/entry_points.def").read_text()
CUDA_HOOKS = re.findall(r"^HOOK\((\w+),", DEFINITIONS, re.MULTILINE)
CUDA_NEEDS = re.findall(r"^NEED\((\w+),", DEFINITIONS, re.MULTILINE)
NVML_HOOKS = re.findall(r"^NVML_HOOK\((\w+),", DEFINITIONS, re.MULTILINE)
NVML_NEEDS = re.findall(r"^NVML_NEED\((\w+),", DEFINITIONS, re.MULTILINE)
LAUNCHES = ["cuLaunchKernel", "cuLaunchKernel_ptsz", "cuGraphLaunch", "cuGraphLaunch_ptsz"]
LOOKUPS = ["cuGetProcAddress", "cuGetProcAddress_v2"]
VERSIONS = [2000, 3020, 11030, 11040, 12000, 13000]
STREAM_MODES = [0, 1, 2]
LOOKED_UP = (HERE / "interception_lookup.c").read_text()
SYMBOLS = sorted(set(re.findall(r"^    [A-Z]+\((\w+)", LOOKED_UP, re.MULTILINE)))
LIMITED = {"CUDA_DEVICE_MEMORY_LIMIT": "1g"}

Tools = Path
plain_only = pytest.mark.skipif(
    bool(container.SANITIZER), reason="a sanitizer's own runtime is noticed in every process"
)


def compile_c(target: Path, sources: list[str], *more: str) -> None:
    toolchain = build.zig(build.own_arch())
    shared = ["-shared", f"-Wl,-soname,{target.name}"] if ".so" in target.name else []
    toolchain.run(
        target.name,
        [
            *toolchain.command,
            *("-O1", "-fPIC", *build.LANGUAGE, *build.WARNINGS, "-Wno-unused-parameter"),
            *("-I", str(build.SOURCES / "include"), "-I", str(build.SOURCES / "libvgpu")),
            *(*shared, "-Wl,-rpath,$ORIGIN"),
            *(str(HERE / source) for source in sources),
            *more,
            *("-ldl", "-lpthread", "-o", str(target)),
        ],
    )


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    """Compile the driver, the program and the libraries around it."""
    folder = tmp_path_factory.mktemp("interception")
    symbolic = "-Wl,-Bsymbolic"
    driver = ["interception_driver.c", "interception_lookup.c"]
    compile_c(folder / "libcuda.so.1", driver, symbolic)
    (folder / "aliased").mkdir()
    compile_c(folder / "aliased/libcuda.so.1", driver, symbolic, "-DINTERCEPTION_ALIASED")
    compile_c(
        folder / "libnvidia-ml.so.1", ["interception_driver.c"], symbolic, "-DINTERCEPTION_NVML"
    )
    (folder / "versioned").mkdir()
    (folder / "versions.map").write_text("CUDA_1 { global: *; };\n")
    script = f"-Wl,--version-script={folder / 'versions.map'}"
    compile_c(folder / "versioned/libcuda.so.1", driver, symbolic, script)
    compile_c(folder / "libuser.so", ["interception_user.c"], str(folder / "libcuda.so.1"))
    compile_c(folder / "libother.so", ["interception_other.c"], symbolic)
    compile_c(folder / "libthird.so", ["interception_third.c"], symbolic)
    compile_c(folder / "libtenth.so", ["interception_third.c"], symbolic, "-DSTEP=10")
    # In this order the program's libraries are searched: third before other.
    ordered = ("-Wl,--no-as-needed", str(folder / "libthird.so"), str(folder / "libother.so"))
    compile_c(folder / "program", ["interception_program.c"], *ordered)
    return folder


@dataclass
class World:
    """What a process sees: libraries, environment, the place of the shared files."""

    build: container.Build
    tools: Tools
    library: Path
    shared: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def reports(self) -> Path:
        return self.library.parent / "sanitizer"

    def variables(self, preload: str | None = None) -> dict[str, str]:
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CUDA_", "GPU_", "LD_", "VGPU_", "FAKEGPU_"))
        }
        if self.build.sanitized is not None:
            clean |= self.build.sanitized.environment(self.reports)
        return {
            **clean,
            "LD_LIBRARY_PATH": str(self.tools),
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self.shared / "region"),
            "LD_PRELOAD": self.build.preload(self.library) if preload is None else preload,
            **self.environment,
        }

    def ask(self, *questions: str, preload: str | None = None) -> dict[str, str]:
        variables = self.variables(preload)
        # What starts the program is not watched.
        wrapper = () if self.build.sanitized is None else self.build.sanitized.wrapper
        command = [*wrapper, "env", f"LD_PRELOAD={variables.pop('LD_PRELOAD')}"]
        done = subprocess.run(
            [*command, str(self.tools / "program")],
            input="".join(f"{question}\n" for question in questions),
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert building.reports(self.reports) == []
        assert (done.returncode, done.stderr) == (0, "")
        answers = done.stdout.splitlines()
        assert len(answers) == len(questions), done.stdout
        return dict(zip(questions, answers, strict=True))

    def natively(self, *questions: str) -> dict[str, str]:
        sanitized = self.build.sanitized
        return self.ask(*questions, preload=str(sanitized.runtime) if sanitized else "")


MakeWorld = Callable[[Mapping[str, str]], World]


@pytest.fixture
def world(tools: Tools, tmp_path: Path) -> MakeWorld:
    """Make a container's view, with these limits in its environment."""
    # A copy, because this build looks for the agent's files beside itself.
    inside = tmp_path / "container"
    inside.mkdir()
    used = container.build_in_use()
    shutil.copy(used.folder / "libvgpu-beside.so", inside / "libvgpu.so")
    shared = tmp_path / "shared"
    shared.mkdir()

    def make(environment: Mapping[str, str]) -> World:
        return World(used, tools, inside / "libvgpu.so", shared, dict(environment))

    return make


@pytest.mark.parametrize(
    ("file", "hooked", "others"),
    [
        ("libcuda.so.1", CUDA_HOOKS, [*CUDA_NEEDS, *LAUNCHES, "cuMemAlloc_v9"]),
        ("libnvidia-ml.so.1", NVML_HOOKS, NVML_NEEDS),
    ],
)
def test_dlsym_gives_the_hook_of_the_same_name(
    world: MakeWorld, file: str, hooked: list[str], others: list[str]
) -> None:
    answers = world(LIMITED).ask(*(f"handle {file} {name}" for name in [*hooked, *others]))
    expected = {f"handle {file} {name}": f"libvgpu.so {name}" for name in hooked}
    expected |= {f"handle {file} {name}": f"{file} {name}" for name in others}
    assert answers == expected


def with_hook(answer: str) -> str:
    """Give what libvgpu should answer where the driver answers this."""
    file, _, name = answer.partition(" ")
    return f"libvgpu.so {name}" if file == "libcuda.so.1" and name in CUDA_HOOKS else answer


def test_cu_get_proc_address_gives_the_hook_of_what_the_driver_gives(world: MakeWorld) -> None:
    questions = [
        f"address {entry} {symbol} {version} {mode}"
        for entry in LOOKUPS
        for symbol in [*SYMBOLS, "cuNoSuchFunction"]
        for version in VERSIONS
        for mode in STREAM_MODES
    ]
    limited = world(LIMITED)
    told = limited.natively(*questions)
    assert limited.ask(*questions) == {
        question: with_hook(answer) for question, answer in told.items()
    }
    assert {answer for answer in told.values() if not answer.startswith("libcuda")} == {
        "error 500 status -1",
        "error 500 status 1",
        "error 500 status 2",
    }


def test_every_kind_of_every_name_of_the_stand_in_driver_gets_its_hook(world: MakeWorld) -> None:
    versions = (build.SOURCES / "fakegpu/cuda_entry_versions.def").read_text()
    facts = re.findall(r"^VARIANT\((\w+), (\d+), (\w+)\)", versions, re.MULTILINE)
    questions = [
        f"address cuGetProcAddress_v2 {base} {version} {mode}"
        for base, since, _ in facts
        for version in (int(since) - 10, int(since), 13000)
        for mode in STREAM_MODES
    ]
    limited = world(LIMITED)
    limited.environment["LD_LIBRARY_PATH"] = str(limited.build.folder / "fakegpu")
    told = limited.natively(*questions)
    assert limited.ask(*questions) == {
        question: with_hook(answer) for question, answer in told.items()
    }
    hooked = {name for _, _, name in facts} & set(CUDA_HOOKS)
    assert {answer.partition(" ")[2] for answer in told.values()} >= hooked
    # None was an unknown kind of a name that is hooked: that would have been counted there.
    assert list(limited.shared.iterdir()) == []


def test_a_version_and_a_stream_mode_get_the_hook_of_their_abi(world: MakeWorld) -> None:
    entry = "address cuGetProcAddress_v2"
    assert world(LIMITED).ask(
        f"{entry} cuCtxSynchronize 12000 0",
        f"{entry} cuCtxSynchronize 13000 0",
        f"{entry} cuStreamSynchronize 12000 1",
        f"{entry} cuStreamSynchronize 12000 2",
        f"{entry} cuMemAlloc 2000 0",
        f"{entry} cuMemAlloc 12000 0",
        f"{entry} cuLaunchKernel 12000 1",
        f"{entry} cuLaunchKernel 12000 2",
    ) == {
        f"{entry} cuCtxSynchronize 12000 0": "libvgpu.so cuCtxSynchronize",
        f"{entry} cuCtxSynchronize 13000 0": "libvgpu.so cuCtxSynchronize_v2",
        f"{entry} cuStreamSynchronize 12000 1": "libvgpu.so cuStreamSynchronize",
        f"{entry} cuStreamSynchronize 12000 2": "libvgpu.so cuStreamSynchronize_ptsz",
        f"{entry} cuMemAlloc 2000 0": "libvgpu.so cuMemAlloc",
        f"{entry} cuMemAlloc 12000 0": "libvgpu.so cuMemAlloc_v2",
        f"{entry} cuLaunchKernel 12000 1": "libcuda.so.1 cuLaunchKernel",
        f"{entry} cuLaunchKernel 12000 2": "libcuda.so.1 cuLaunchKernel_ptsz",
    }


def unknown_entry_points(world: World) -> int:
    state = (world.shared / "region.state").read_bytes()
    [count] = struct.unpack_from("<I", state, STATE.places["unknown_entry_points"][0])
    return int(count)


def test_a_newer_kind_of_a_hooked_function_is_passed_on_and_counted(world: MakeWorld) -> None:
    limited = world(LIMITED)
    newer = "address cuGetProcAddress_v2 cuMemAlloc 99000 0"
    unhooked = "address cuGetProcAddress_v2 cuLaunchKernel 99000 0"
    known = "address cuGetProcAddress_v2 cuMemFree 99000 0"
    assert limited.ask(newer, unhooked, known, newer) == {
        newer: "libcuda.so.1 cuMemAlloc_v9",
        unhooked: "libcuda.so.1 cuLaunchKernel",
        known: "libvgpu.so cuMemFree_v2",
    }
    assert unknown_entry_points(limited) == 2


def test_a_newer_version_that_is_found_by_name_is_passed_on_and_counted(world: MakeWorld) -> None:
    limited = world(LIMITED)
    newer = "handle libcuda.so.1 cuMemAlloc_v9"
    absent = "handle libcuda.so.1 cuMemFree_v5"
    unhooked = "handle libcuda.so.1 cuLaunchKernel_ptsz"
    known = "handle libcuda.so.1 cuMemFree_v2"
    answers = limited.ask(newer, absent, unhooked, known)
    assert answers[newer] == "libcuda.so.1 cuMemAlloc_v9"
    assert answers[unhooked] == "libcuda.so.1 cuLaunchKernel_ptsz"
    assert answers[known] == "libvgpu.so cuMemFree_v2"
    assert unknown_entry_points(limited) == 1


def test_without_limits_every_pointer_is_the_drivers_own(world: MakeWorld) -> None:
    free = world({})
    questions = [
        *(f"handle libcuda.so.1 {name}" for name in CUDA_HOOKS),
        *(f"handle libnvidia-ml.so.1 {name}" for name in NVML_HOOKS),
        *(f"address cuGetProcAddress_v2 {symbol} 12000 0" for symbol in SYMBOLS),
    ]
    assert free.ask(*questions) == free.natively(*questions)
    assert list(free.shared.iterdir()) == []


def test_without_limits_linked_programs_are_forwarded_to_the_driver(world: MakeWorld) -> None:
    names = [name for name in [*CUDA_HOOKS, *NVML_HOOKS] if name not in LOOKUPS]
    numbers = {
        name: 10001 + position
        for position, name in enumerate(
            re.findall(r"^(?:NVML_)?(?:HOOK|NEED)\((\w+),", DEFINITIONS, re.MULTILINE)
        )
    }
    answers = world({}).ask(*(f"call {name}" for name in names))
    assert answers == {f"call {name}": str(numbers[name]) for name in names}


def test_names_of_other_libraries_are_left_alone(world: MakeWorld) -> None:
    names = ["cudaMalloc", "curl_easy_init", "cuInit", "cuMemAlloc_v2", "nvmlInit_v2"]
    questions = [f"handle libother.so {name}" for name in names]
    assert world(LIMITED).ask(*questions) == {
        f"handle libother.so {name}": f"libother.so {name}" for name in names
    }
    # The same once the real driver is known.
    answers = world(LIMITED).ask("handle libcuda.so.1 cuInit", *questions)
    assert [answers[question] for question in questions] == [
        f"libother.so {name}" for name in names
    ]


@plain_only
def test_a_lookup_elsewhere_does_not_load_the_driver(world: MakeWorld) -> None:
    limited = world(LIMITED)
    script = (
        "import ctypes\n"
        f"other = ctypes.CDLL({str(limited.tools / 'libother.so')!r})\n"
        "print(other.cuInit(), other.nvmlInit_v2())\n"
        "maps = open('/proc/self/maps').read()\n"
        "print('libcuda' in maps, 'libnvidia-ml' in maps)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=limited.variables(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("23 25\nFalse False\n", "")


def test_rtld_default_and_the_program_itself_find_the_preloaded_hooks(world: MakeWorld) -> None:
    questions = ["default cuMemAlloc_v2", "handle - cuMemAlloc_v2", "default nvmlInit_v2"]
    assert world(LIMITED).ask(*questions) == {
        "default cuMemAlloc_v2": "libvgpu.so cuMemAlloc_v2",
        "handle - cuMemAlloc_v2": "libvgpu.so cuMemAlloc_v2",
        "default nvmlInit_v2": "libvgpu.so nvmlInit_v2",
    }


@pytest.mark.parametrize(
    "question",
    [
        "handle libcuda.so.1 cuNoSuchFunction",
        "handle libother.so cuMemFree_v2",  # a hook's name, in a library that lacks it
        "handle libnvidia-ml.so.1 nvmlNoSuchFunction",
        "handle libother.so no_such_name",
        "default no_such_name",
    ],
)
def test_a_missing_name_gives_dlerrors_own_message(world: MakeWorld, question: str) -> None:
    limited = world(LIMITED)
    expected = limited.natively(question)
    assert re.match(r"none .*undefined symbol: \w+$", expected[question])
    assert limited.ask(question) == expected


def test_dlsym_leaves_errno_alone(world: MakeWorld, tmp_path: Path) -> None:
    limited = world(LIMITED)
    questions = ["errno libcuda.so.1 cuMemAlloc_v2", "errno libother.so cuInit"]
    assert set(limited.ask(*questions).values()) == {"found 77"}
    # Also where the driver is looked for in vain.
    limited.environment["LD_LIBRARY_PATH"] = str(tmp_path)
    assert set(limited.ask("errno libother.so cuInit").values()) == {"found 77"}


def test_hooks_survive_a_dlclose_of_the_driver(world: MakeWorld) -> None:
    question = "closed libcuda.so.1 cuMemAlloc_v2"
    assert world(LIMITED).ask(question) == {question: "libvgpu.so cuMemAlloc_v2"}


@pytest.mark.parametrize("how", ["forked", "threads"])
def test_forked_children_and_many_threads_get_hooks(world: MakeWorld, how: str) -> None:
    question = f"{how} libcuda.so.1 cuMemAlloc_v2"
    nvml = f"{how} libnvidia-ml.so.1 nvmlInit_v2"
    assert world(LIMITED).ask(question, nvml) == {
        question: "libvgpu.so cuMemAlloc_v2",
        nvml: "libvgpu.so nvmlInit_v2",
    }


@plain_only
@pytest.mark.parametrize("function", ["linked", "looked_up", "next", "next_versioned"])
@pytest.mark.parametrize("how", ["plain", "deep", "apart"])
def test_a_library_that_is_opened_apart_gets_hooks_under_a_limit(
    world: MakeWorld, how: str, function: str
) -> None:
    question = f"user {how} {function}"
    assert world(LIMITED).ask(question) == {question: "libvgpu.so cuMemAlloc_v2"}


@plain_only
def test_what_is_not_hooked_comes_next_from_the_driver(world: MakeWorld) -> None:
    questions = ("user plain next_unknown", "user plain next")
    for question, name in zip(questions, ("cuLaunchKernel", "cuMemAlloc_v2"), strict=True):
        assert world({}).ask(question) == {question: f"libcuda.so.1 {name}"}
    assert world(LIMITED).ask(questions[0]) == {questions[0]: "libcuda.so.1 cuLaunchKernel"}


def test_a_second_copy_of_the_driver_gets_hooks(world: MakeWorld, tmp_path: Path) -> None:
    limited = world(LIMITED)
    copy = shutil.copy(limited.tools / "libcuda.so.1", tmp_path / "other.so")
    first, hooked = "handle libcuda.so.1 cuInit", f"handle {copy} cuMemAlloc_v2"
    launch = f"handle {copy} cuLaunchKernel"
    assert limited.ask(first, hooked, launch) == {
        first: "libvgpu.so cuInit",
        hooked: "libvgpu.so cuMemAlloc_v2",
        launch: "other.so cuLaunchKernel",
    }


def test_a_wrapper_in_the_drivers_place_finds_the_driver(world: MakeWorld, tmp_path: Path) -> None:
    limited = world(LIMITED)
    behind = shutil.copy(limited.tools / "libcuda.so.1", tmp_path / "behind.so")
    wrapper = tmp_path / "wrapped/libcuda.so.1"
    wrapper.parent.mkdir()
    compile_c(wrapper, ["interception_wrapper.c"], f'-DBEHIND="{behind}"')
    plainly = limited.ask("call cuInit")
    limited.environment["LD_LIBRARY_PATH"] = str(wrapper.parent)
    assert limited.ask("call cuInit") == plainly


@plain_only
@pytest.mark.parametrize("how", ["deep", "apart"])
def test_without_a_limit_libraries_are_opened_as_they_ask(world: MakeWorld, how: str) -> None:
    question = f"user {how} linked"
    assert world({}).ask(question) == {question: "libcuda.so.1 cuMemAlloc_v2"}


@plain_only
def test_a_library_is_looked_for_where_its_caller_says(world: MakeWorld) -> None:
    """The program's own run path is beside itself; libvgpu has none."""
    limited = world({**LIMITED, "LD_LIBRARY_PATH": ""})
    for question in ("handle libuser.so linked", "user deep looked_up"):
        assert not limited.natively(question)[question].startswith("none")
        assert not limited.ask(question)[question].startswith("none")


def test_dlvsym_is_answered_as_dlsym_is(world: MakeWorld) -> None:
    limited = world(LIMITED)
    limited.environment["LD_LIBRARY_PATH"] = str(limited.tools / "versioned")
    question, launch = (
        f"versioned libcuda.so.1 {name} CUDA_1" for name in ("cuMemAlloc_v2", "cuLaunchKernel")
    )
    assert limited.natively(question) == {question: "libcuda.so.1 cuMemAlloc_v2"}
    assert limited.ask(question, launch) == {
        question: "libvgpu.so cuMemAlloc_v2",
        launch: "libcuda.so.1 cuLaunchKernel",
    }
    missing = "versioned libcuda.so.1 cuMemAlloc_v2 CUDA_2"
    assert limited.ask(missing) == limited.natively(missing)


@plain_only
@pytest.mark.parametrize("name", ["dlsym", "dlvsym", "dlopen", "dlmopen"])
def test_the_linkers_own_functions_are_not_found_behind_ours(world: MakeWorld, name: str) -> None:
    limited = world(LIMITED)
    question = f"handle libc.so.6 {name}"
    assert limited.natively(question) != {question: f"libvgpu.so {name}"}
    assert limited.ask(question) == {question: f"libvgpu.so {name}"}
    assert world({}).ask(question) == limited.natively(question)


def test_one_function_under_two_names_gets_a_hook_under_either(world: MakeWorld) -> None:
    aliased = world(LIMITED)
    aliased.environment["LD_LIBRARY_PATH"] = str(aliased.tools / "aliased")
    old, new = "cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2"
    assert aliased.ask(
        f"handle libcuda.so.1 {old}",
        f"handle libcuda.so.1 {new}",
        f"address cuGetProcAddress_v2 {old} 5000 0",
        f"address cuGetProcAddress_v2 {old} 12000 0",
    ) == {
        f"handle libcuda.so.1 {old}": f"libvgpu.so {old}",
        f"handle libcuda.so.1 {new}": f"libvgpu.so {new}",
        # By its address alone it is the name that comes first in entry_points.def.
        f"address cuGetProcAddress_v2 {old} 5000 0": f"libvgpu.so {old}",
        f"address cuGetProcAddress_v2 {old} 12000 0": f"libvgpu.so {old}",
    }


@pytest.mark.parametrize("limits", [{}, LIMITED])
def test_rtld_next_means_after_the_caller(world: MakeWorld, limits: dict[str, str]) -> None:
    assert world(limits).ask("chain") == {"chain": "101"}


@pytest.mark.parametrize(
    "order",
    [
        ("libvgpu", "libtenth"),
        # A sanitizer's runtime must be the first of all.
        pytest.param(("libtenth", "libvgpu"), marks=plain_only),
    ],
)
def test_an_interposer_finds_the_next_one_whichever_is_preloaded_first(
    world: MakeWorld, order: tuple[str, str]
) -> None:
    limited = world(LIMITED)
    paths = {
        "libvgpu": limited.build.preload(limited.library),
        "libtenth": str(limited.tools / "libtenth.so"),
    }
    preload = " ".join(paths[name] for name in order)
    assert limited.ask("chain", preload=preload) == {"chain": "111"}


def test_a_late_bound_container_without_policy_has_no_gpu(world: MakeWorld) -> None:
    refused = world(LIMITED)
    (refused.library.parent / "policy").mkdir()
    no_device, driver_not_loaded = 100, 9
    assert refused.ask(
        "call cuInit",
        "call nvmlInit_v2",
        "call nvmlInit",
        "call nvmlInitWithFlags",
        "handle libcuda.so.1 cuInit",
        "address cuGetProcAddress_v2 cuInit 12000 0",
    ) == {
        "call cuInit": str(no_device),
        "call nvmlInit_v2": str(driver_not_loaded),
        "call nvmlInit": str(driver_not_loaded),
        "call nvmlInitWithFlags": str(driver_not_loaded),
        "handle libcuda.so.1 cuInit": "libvgpu.so cuInit",
        "address cuGetProcAddress_v2 cuInit 12000 0": "libvgpu.so cuInit",
    }


def test_without_a_driver_there_is_no_device(world: MakeWorld, tmp_path: Path) -> None:
    nowhere = world({**LIMITED, "LD_LIBRARY_PATH": str(tmp_path)})
    no_device, no_library = 100, 12
    assert nowhere.ask("call cuInit", "call cuInit", "call nvmlInit_v2") == {
        "call cuInit": str(no_device),
        "call nvmlInit_v2": str(no_library),
    }


@plain_only
@pytest.mark.parametrize(
    "command",
    [
        ["/bin/true"],
        ["/bin/sh", "-c", "umask; exit 3"],
        ["/bin/sh", "-c", "echo out; echo err >&2; kill -USR1 $$"],
        # Not SigQ: that counts the signals of all of the user's processes on the machine.
        ["/bin/sh", "-c", "grep -E '^(Sig[^Q]|Shd|Threads)' /proc/self/status"],
        ["/bin/sh", "-c", "for f in /proc/self/fd/*; do echo ${f##*/}; done; umask 027; umask"],
        [sys.executable, "-I", "-c", "import signal; print(signal.getsignal(signal.SIGUSR2))"],
    ],
)
def test_preloaded_into_everything_it_is_not_noticed(world: MakeWorld, command: list[str]) -> None:
    def run(environment: dict[str, str]) -> tuple[int, str, str]:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    limited = world(LIMITED)
    assert run(limited.variables()) == run(limited.variables(preload=""))
    assert list(limited.shared.iterdir()) == []


@plain_only
def test_a_process_that_uses_no_gpu_maps_nothing_but_the_library(world: MakeWorld) -> None:
    limited = world(LIMITED)

    def mapped(preload: str | None) -> set[str]:
        done = subprocess.run(
            ["/bin/cat", "/proc/self/maps"],
            env=limited.variables(preload),
            capture_output=True,
            text=True,
            check=True,
        )
        return {line.split()[5] for line in done.stdout.splitlines() if "/" in line}

    # Before glibc 2.34 dlopen and the threads' functions were libraries of their own.
    system = {name for name in mapped(None) if re.search(r"/lib(dl|pthread)[.-]", name)}
    assert mapped(None) - mapped("") - system == {str(limited.library)}


CALLS_ALL = """
import ctypes, sys
found = ctypes.CDLL(None)
print([name for name in sys.argv[1:] if found[name](*[None] * 10) == 0])
"""


@pytest.mark.skipif(bool(container.SANITIZER), reason="Python itself is not instrumented")
@pytest.mark.parametrize("limits", [{}, {"CUDA_DEVICE_MEMORY_LIMIT": "1g"}])
def test_without_a_driver_every_name_says_so(world: MakeWorld, limits: dict[str, str]) -> None:
    """RTLD_DEFAULT finds our names in every process; calling one must not end it."""
    variables = world(limits).variables()
    done = subprocess.run(
        [sys.executable, "-S", "-c", CALLS_ALL, *CUDA_HOOKS, *NVML_HOOKS],
        env={**variables, "LD_LIBRARY_PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
