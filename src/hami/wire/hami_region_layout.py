"""Where the fields of HAMi's shared region lie, in the two versions that containers still have.

libvgpu writes version 1.2 as a copy of its own numbers (native/libvgpu/mirror.c), for monitors that
know no other; our own monitor reads both from containers that HAMi's library runs in.
"""

from __future__ import annotations

from hami.wire.region_layout import Layout

MAGIC = 19920718
MAX_DEVICES = 16
MAX_PROCESSES = 1024

USED_V1 = Layout(
    ("context", "Q"),
    ("module", "Q"),
    ("data", "Q"),
    ("offset", "Q"),
    ("total", "Q"),
    ("reserved", "24s"),
)
UTIL_V1 = Layout(("dec", "Q"), ("enc", "Q"), ("sm", "Q"), ("reserved", "24s"))
PROCESS_V1 = Layout(
    ("pid", "i"),  # in the container; 0 is dead
    ("hostpid", "i"),
    ("used", f"{MAX_DEVICES * USED_V1.size}s"),
    ("monitorused", f"{MAX_DEVICES * 8}s"),
    ("device_util", f"{MAX_DEVICES * UTIL_V1.size}s"),
    ("status", "i"),  # 0 inactive, 1 running, 2 suspended
    ("padding", "4s"),
    ("seqlock", "Q"),  # odd while it is being written
    ("reserved", "16s"),
)
REGION_V1 = Layout(
    ("initialized_flag", "i"),  # MAGIC, written last
    ("major_version", "I"),
    ("minor_version", "I"),
    ("sm_init_flag", "i"),
    ("owner_pid", "Q"),
    ("sem", "32s"),
    ("device_num", "Q"),
    ("uuids", f"{MAX_DEVICES * 96}s"),
    ("limit", f"{MAX_DEVICES * 8}s"),  # bytes; 0 is no limit
    ("sm_limit", f"{MAX_DEVICES * 8}s"),  # percent; 100 is no limit
    ("procs", f"{MAX_PROCESSES * PROCESS_V1.size}s"),
    ("proc_num", "i"),
    ("utilization_switch", "i"),
    ("recent_kernel", "i"),
    ("priority", "i"),
    ("last_kernel_time", "q"),
    ("sem_postinit", "32s"),
)

USED_V0 = Layout(("context", "Q"), ("module", "Q"), ("data", "Q"), ("offset", "Q"), ("total", "Q"))
UTIL_V0 = Layout(("dec", "Q"), ("enc", "Q"), ("sm", "Q"))
PROCESS_V0 = Layout(
    ("pid", "i"),
    ("hostpid", "i"),
    ("used", f"{MAX_DEVICES * USED_V0.size}s"),
    ("monitorused", f"{MAX_DEVICES * 8}s"),
    ("device_util", f"{MAX_DEVICES * UTIL_V0.size}s"),
    ("status", "i"),
    ("padding", "4s"),
)
REGION_V0 = Layout(
    ("initialized_flag", "i"),
    ("sm_init_flag", "i"),
    ("owner_pid", "I"),
    ("padding", "4s"),
    ("sem", "32s"),
    ("device_num", "Q"),
    ("uuids", f"{MAX_DEVICES * 96}s"),
    ("limit", f"{MAX_DEVICES * 8}s"),
    ("sm_limit", f"{MAX_DEVICES * 8}s"),
    ("procs", f"{MAX_PROCESSES * PROCESS_V0.size}s"),
    ("proc_num", "i"),
    ("utilization_switch", "i"),
    ("recent_kernel", "i"),
    ("priority", "i"),
)
