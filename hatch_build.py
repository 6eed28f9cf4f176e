"""Build hook of the wheel: compiles libvgpu, stand-in driver and probe, and adds the examples.

A wheel then has the native files of one architecture (or those of HAMI_NATIVE_ARCHES) and says so
by its tag; the examples are what `hami demo` runs where there is no checkout. An editable install
compiles nothing: in a checkout `make native` does, when they are wanted and only if sources
changed.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        native = _native(Path(self.root))
        arches = native.wanted_arches([native.own_arch()])
        products = [product for product in native.PRODUCTS if product.shipped]
        native.build([native.zig(arch) for arch in arches], products, say=self.app.display_info)
        for arch in arches:
            for product in products:
                inside = f"hami/native/lib/{arch}/{product.name}"
                build_data["force_include"][str(native.LIBRARIES / arch / product.name)] = inside
        # `hami demo` finds them there where there is no checkout.
        for example in sorted(Path(self.root, "examples").glob("[0-9]*")):
            build_data["force_include"][str(example)] = f"hami/sandbox/examples/{example.name}"
        build_data["pure_python"] = False
        glibc = native.GLIBC.replace(".", "_")
        # No extension module in it: any Python 3, but only where the libraries can be loaded.
        platforms = ".".join(sorted(f"manylinux_{glibc}_{arch}" for arch in arches))
        build_data["tag"] = f"py3-none-{platforms}"


def _native(root: Path) -> ModuleType:
    """Load native/build.py by its path: a build frontend does not put `root` on sys.path."""
    spec = importlib.util.spec_from_file_location("hami_native_build", root / "native/build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module
