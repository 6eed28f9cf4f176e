"""PTX text for the kernels of tests/gpu; the driver compiles it, not nvcc."""

from __future__ import annotations

HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"


def empty(name: str = "nothing") -> bytes:
    return f"{HEAD}.visible .entry {name}()\n{{\n  ret;\n}}\n".encode()


def local_memory(size: int, name: str = "locals") -> bytes:
    """Make a kernel whose every thread has `size` bytes of local memory.

    The two indexes are parameters, so that the compiler cannot keep the bytes in registers.
    """
    return (
        f"{HEAD}.visible .entry {name}(.param .u64 out, .param .u32 first, .param .u32 second)\n"
        "{\n"
        f"  .local .align 16 .b8 depot[{size}];\n"
        "  .reg .b64 %rd<8>;\n"
        "  .reg .b32 %r<4>;\n"
        "  ld.param.u64 %rd1, [out];\n"
        "  ld.param.u32 %r1, [first];\n"
        "  ld.param.u32 %r2, [second];\n"
        "  cvta.to.global.u64 %rd2, %rd1;\n"
        "  mov.u64 %rd3, depot;\n"
        "  mul.wide.u32 %rd4, %r1, 4;\n"
        "  add.s64 %rd5, %rd3, %rd4;\n"
        "  st.local.u32 [%rd5], %r1;\n"
        "  mul.wide.u32 %rd6, %r2, 4;\n"
        "  add.s64 %rd7, %rd3, %rd6;\n"
        "  ld.local.u32 %r3, [%rd7];\n"
        "  st.global.u32 [%rd2], %r3;\n"
        "  ret;\n"
        "}\n"
    ).encode()


def static_memory(size: int, name: str = "user") -> bytes:
    """Make a module with `size` bytes of device memory of its own, taken when it is loaded.

    The comment tells the stand-in driver, which compiles nothing, the same.
    """
    return (
        f"{HEAD}// fakegpu: code {size}\n.visible .global .align 256 .b8 big[{size}];\n"
        f".visible .entry {name}()\n{{\n"
        "  .reg .b32 %r<2>;\n"
        "  mov.u32 %r1, 7;\n"
        "  st.global.u32 [big], %r1;\n"
        "  ret;\n}\n"
    ).encode()


def many_kernels(count: int, length: int, prefix: str = "step") -> bytes:
    """Make a module of `count` kernels of `length` steps that no compiler can fold: much code."""
    parts = [HEAD]
    for index in range(count):
        body = "".join(
            f"  mul.hi.u32 %r2, %r1, {turn * 2654435761 % 2**31 + 3};\n  xor.b32 %r1, %r1, %r2;\n"
            for turn in range(length)
        )
        parts.append(
            f".visible .entry {prefix}{index}(.param .u64 out)\n{{\n"
            "  .reg .b64 %rd<3>;\n  .reg .b32 %r<3>;\n"
            "  ld.param.u64 %rd1, [out];\n  cvta.to.global.u64 %rd2, %rd1;\n"
            "  mov.u32 %r1, %clock;\n"
            f"{body}"
            "  st.global.u32 [%rd2], %r1;\n  ret;\n}\n"
        )
    return "".join(parts).encode()
