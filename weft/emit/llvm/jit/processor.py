"""Processors as code generation targets, and LLVM's initialization."""

from __future__ import annotations

import functools
import importlib.util
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from weft.emit.llvm.jit.caches import Caches, caches_here
from weft.emit.llvm.jit.matrix_tiles import tiles_permitted
from weft.errors import Unsupported, missing_extra
from weft.ir.gc_pause import importing
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Processor:
    """A code generation target: triple, CPU name, and features in LLVM's notation.

    Emission depends on the kernel and the processor alone, which need not be this machine's.
    """

    triple: str
    cpu: str = "generic"
    features: str = ""
    caches: Caches = Caches()

    def has(self, feature: str) -> bool:
        """Whether a feature is enabled, such as `avx512bf16`."""
        return f"+{feature}" in self.features.split(",")


# 64-bit ARM: 128-bit vectors, and the common features of each family.
ARM_LINUX = Processor("aarch64-unknown-linux-gnu", "generic", "+neon")
ARM_SERVER = Processor(
    "aarch64-unknown-linux-gnu", "neoverse-n2", "+neon,+fullfp16,+bf16,+dotprod,+i8mm,+lse"
)
ARM_MACOS = Processor("arm64-apple-macosx14.0.0", "apple-m1", "+neon,+fullfp16,+dotprod,+lse")


@functools.cache
def host() -> Processor:
    """The processor of this machine, with full-width vectors, and AMX if granted."""
    llvm = binding()
    features = llvm.get_host_cpu_features()
    # AMX may be advertised although a hypervisor forbids it or the system has not granted it; LLVM
    # prefers 256-bit vectors because of frequency limits that newer processors no longer have.
    tiles = any(on and name.startswith("amx") for name, on in features.items())
    tiles = tiles and tiles_permitted()
    named = {name: on and (tiles or not name.startswith("amx")) for name, on in features.items()}
    if named.get("avx512f"):
        # Part of the features, and so of every cache key: objects of the two settings differ.
        named["prefer-256-bit"] = False
    listed = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(named.items()))
    return Processor(llvm.get_process_triple(), llvm.get_host_cpu_name(), listed, caches_here())


def binding() -> Any:
    """llvmlite's binding of LLVM, initialized for this machine."""
    return _binding()


@functools.cache
def _binding() -> Any:
    try:
        with importing():
            from llvmlite import binding as llvm
    except ImportError as error:
        raise missing_extra("llvmlite", "cpu", "making kernels for CPUs") from error
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()  # kernels may contain inline assembly
    return llvm


@functools.cache
def has_llvm() -> bool:
    """Whether llvmlite is installed; without it nothing is emitted, and no processor known."""
    return importlib.util.find_spec("llvmlite") is not None


def llvm_lock() -> AbstractContextManager[None]:
    """LLVM's lock; a no-op before LLVM is first used."""
    if "llvmlite.binding" not in sys.modules:
        return nullcontext()
    from llvmlite.binding import ffi

    lock: AbstractContextManager[None] = getattr(ffi.lib, "_lock", nullcontext())
    return lock


def llvm_version() -> str:
    """The version of LLVM: `22.1.0`."""
    return ".".join(str(part) for part in binding().llvm_version_info)


def target_machine(processor: Processor, level: int = 2) -> Any:
    """LLVM's target machine for a processor; an execution engine takes ownership of one."""
    llvm = binding()
    if processor.triple.partition("-")[0] != llvm.get_process_triple().partition("-")[0]:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple(processor.triple)
    except RuntimeError as error:
        raise Unsupported(
            f"this LLVM has no target {processor.triple}: {error}",
            help="llvmlite's packages have the targets of common processors only",
        ) from error
    return target.create_target_machine(
        cpu=processor.cpu, features=processor.features, opt=level, jit=True
    )
