"""Machine code from LLVM text: objects to link, assembly and optimized text to read."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from weft.emit.llvm.emitted import symbol
from weft.emit.llvm.jit.processor import Processor, binding, host, target_machine
from weft.emit.llvm.jit.supplied import supplied
from weft.emit.llvm.math.polynomial import QUICK_DIVISION
from weft.errors import WeftError


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
