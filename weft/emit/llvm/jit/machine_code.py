"""Machine code from LLVM text: objects to link, assembly and optimized text to read."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from weft.emit.llvm.jit.caches import USUAL, cache_sizes
from weft.emit.llvm.jit.matrix_tiles import tiles_permitted
from weft.emit.llvm.jit.supplied import BODIES, supplied
from weft.emit.llvm.math.polynomial import QUICK_DIVISION
from weft.errors import Unsupported, WeftError, missing_extra

# What every object depends on besides its text and processor; part of the key of a cached one.
PIPELINE = f"{BODIES}, always inline, sroa, code 2"


@dataclass(frozen=True, slots=True)
class Processor:
    """What code is made for: a triple, the name of a CPU, and features as LLVM writes them.

    Text is made of a kernel and a processor alone, which need not be this machine's.
    """

    triple: str
    cpu: str = "generic"
    features: str = ""
    caches: tuple[int, int] = USUAL  # bytes of a core's first and second data cache

    def has(self, feature: str) -> bool:
        """Whether a feature is named as present: `avx512bf16`."""
        return f"+{feature}" in self.features.split(",")


# Processors of 64-bit ARM: vectors of 128 bits, and what all of a kind have.
ARM_LINUX = Processor("aarch64-unknown-linux-gnu", "generic", "+neon")
ARM_SERVER = Processor(
    "aarch64-unknown-linux-gnu", "neoverse-n2", "+neon,+fullfp16,+bf16,+dotprod,+i8mm,+lse"
)
ARM_MACOS = Processor("arm64-apple-macosx14.0.0", "apple-m1", "+neon,+fullfp16,+dotprod,+lse")


@functools.cache
def host() -> Processor:
    """The processor of this machine, with full-width vectors, and matrix tiles if we get them."""
    llvm = binding()
    features = llvm.get_host_cpu_features()
    # Tiles are advertised where a hypervisor forbids them, or the system has not been asked; 256
    # bits are preferred for reasons of frequency that newer processors no longer have.
    tiles = any(on and name.startswith("amx") for name, on in features.items())
    tiles = tiles and tiles_permitted()
    named = {name: on and (tiles or not name.startswith("amx")) for name, on in features.items()}
    if named.get("avx512f"):
        named["prefer-256-bit"] = False
    listed = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(named.items()))
    return Processor(llvm.get_process_triple(), llvm.get_host_cpu_name(), listed, cache_sizes())


def binding() -> Any:
    """llvmlite's binding of LLVM, ready for this machine's code."""
    return _binding()


@functools.cache
def _binding() -> Any:
    try:
        from llvmlite import binding as llvm
    except ImportError as error:
        raise missing_extra("llvmlite", "cpu", "making kernels for CPUs") from error
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()  # kernels may have instructions as assembly
    return llvm


@functools.cache
def has_llvm() -> bool:
    """Whether llvmlite is installed; without it nothing is emitted, and no processor known."""
    return importlib.util.find_spec("llvmlite") is not None


def llvm_lock() -> AbstractContextManager[None]:
    """What keeps other threads out of LLVM; nothing as long as nobody has used it."""
    if "llvmlite.binding" not in sys.modules:
        return nullcontext()
    from llvmlite.binding import ffi

    lock: AbstractContextManager[None] = getattr(ffi.lib, "_lock", nullcontext())
    return lock


def llvm_version() -> str:
    """The version of LLVM that compiles: `22.1.0`."""
    return ".".join(str(part) for part in binding().llvm_version_info)


def symbol(function: str, text: str) -> str:
    """The name that a function of a text has in its object: no two texts share one."""
    return f"{function}.{_digest(text)}"


@functools.lru_cache(maxsize=8)  # a text has many functions, one after another
def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def compile_text(text: str, processor: Processor | None = None) -> bytes:
    """The object of a text; its functions are called as `symbol` says."""
    return Compiler(processor or host()).object(text)


def assembly(text: str, processor: Processor | None = None) -> str:
    """The assembly that a text becomes."""
    return Compiler(processor or host()).assembly(text)


def optimized(text: str, processor: Processor | None = None) -> str:
    """The text as LLVM's passes leave it."""
    return Compiler(processor or host()).optimized(text)


class Compiler:
    """LLVM set up for a processor. Several can work at the same time, each in its own thread."""

    def __init__(self, processor: Processor, *, brief: bool = False) -> None:
        llvm = binding()
        self._machine = target_machine(processor, 0 if brief else 2)
        self._processor = processor
        # Other processors have no estimates of a quotient, or too coarse ones.
        self._estimates = processor.has("avx512f")
        self._layout = str(self._machine.target_data)
        # Kernels are written as vectors and blocks already: of LLVM's usual passes none makes them
        # faster (measured on whole steps), and together they take as long as making the code.
        options = llvm.create_pipeline_tuning_options(speed_level=1)
        self._builder = llvm.create_pass_builder(self._machine, options)
        self._passes = llvm.create_new_module_pass_manager()
        self._passes.add_always_inliner_pass()
        self._passes.add_sroa_pass()
        self._run_passes = unlocked("LLVMPY_RunNewModulePassManager")
        self._emit = unlocked("LLVMPY_TargetMachineEmitToMemory")

    def object(self, text: str) -> bytes:
        """The object of a text; its functions are called as `symbol` says."""
        module = self._passed(text)
        for function in module.functions:
            if not function.is_declaration and function.linkage.name == "external":
                function.name = symbol(function.name, text)
        for variable in module.global_variables:
            if not variable.is_declaration and variable.linkage.name == "external":
                variable.linkage = "internal"
        return self._emitted(module, to_object=True)

    def assembly(self, text: str) -> str:
        """The assembly that a text becomes."""
        return self._emitted(self._passed(text), to_object=False).decode()

    def optimized(self, text: str) -> str:
        """The text as LLVM's passes leave it."""
        return str(self._passed(text))

    def _passed(self, text: str) -> Any:
        """A module of the text, verified, after the passes."""
        try:
            exact = text if self._estimates else text.replace(QUICK_DIVISION, "fdiv")
            whole = supplied(exact, self._processor)
            # What a context has seen it keeps: each module has its own.
            module = binding().parse_assembly(whole, binding().create_context())
            module.verify()
        except RuntimeError as error:
            raise WeftError(
                f"LLVM does not accept the text of a kernel: {str(error).strip()}",
                help="this is a bug in weft; `weft kernels` shows the text",
            ) from error
        module.triple = self._machine.triple
        module.data_layout = self._layout
        self._run_passes(self._passes, module, self._builder)
        return module

    def _emitted(self, module: Any, *, to_object: bool) -> bytes:
        from llvmlite.binding import ffi

        with ffi.OutputString() as problem:
            buffer = self._emit(self._machine, module, int(to_object), problem)
            if not buffer:
                raise WeftError(
                    f"LLVM makes no code of a kernel: {problem}", help="this is a bug in weft"
                )
        try:
            start, size = (
                ffi.lib.LLVMPY_GetBufferStart(buffer),
                ffi.lib.LLVMPY_GetBufferSize(buffer),
            )
            return ctypes.string_at(start, size)
        finally:
            ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def unlocked(name: str) -> Callable[..., Any]:
    """A function of llvmlite's library without the lock that llvmlite holds around every call.

    LLVM allows threads to work at the same time if each has a context, a target machine and passes
    of its own, as every Compiler has. If llvmlite does not tell where its library is, the function
    is the one with the lock: compilers then wait for each other.
    """
    from llvmlite.binding import ffi

    locked: Callable[..., Any] = getattr(ffi.lib, name)
    path = getattr(ffi.lib, "_name", None)
    if path is None:
        return locked
    function = getattr(_library(path), name)
    function.argtypes, function.restype = locked.argtypes, locked.restype  # type: ignore[attr-defined]
    found: Callable[..., Any] = function
    return found


@functools.cache
def _library(path: str) -> ctypes.CDLL:
    return ctypes.CDLL(path)


def target_machine(processor: Processor, level: int = 2) -> Any:
    """LLVM's own object for a processor; an execution engine takes one for itself."""
    llvm = binding()
    if processor.triple.partition("-")[0] != llvm.get_process_triple().partition("-")[0]:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple(processor.triple)
    except RuntimeError as error:
        raise Unsupported(
            f"this LLVM makes no code for {processor.triple}: {error}",
            help="llvmlite's packages have the targets of common processors only",
        ) from error
    return target.create_target_machine(
        cpu=processor.cpu, features=processor.features, opt=level, jit=True
    )
