"""Build hook of both wheels: native files, and the examples of the sandbox.

hami has libvgpu and the probe, hami-sandbox the stand-in driver and the examples that `hami demo`
runs where there is no checkout. A wheel has the native files of one architecture (or those of
HAMI_NATIVE_ARCHES) and says so by its tag. An editable install compiles nothing: in a checkout
`make native` does, and only if sources changed.
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
        checkout = Path(__file__).resolve().parent
        native = _native(checkout)
        package = self.metadata.name.replace("-", "_")
        arches = native.wanted_arches([native.own_arch()])
        products = [product for product in native.PRODUCTS if product.package == package]
        native.build([native.zig(arch) for arch in arches], products, say=self.app.display_info)
        for arch in arches:
            for product in products:
                inside = f"{package}/lib/{arch}/{product.name}"
                build_data["force_include"][str(native.LIBRARIES / arch / product.name)] = inside
        if package == "hami_sandbox":
            for example in sorted((checkout / "examples").glob("[0-9]*")):
                build_data["force_include"][str(example)] = f"{package}/examples/{example.name}"
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
