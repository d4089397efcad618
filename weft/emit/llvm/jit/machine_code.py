"""Machine code from LLVM IR: objects to link, assembly and optimized IR to read."""

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

# Characters of a flow in which LLVM unrolls loops. Dozens of inlined kernels of 1,000 points would
# take code generation ten times as long, and run no faster.
_UNROLLED = 200_000


def compile_text(text: str, processor: Processor | None = None) -> bytes:
    """The object of a text; `symbol` gives the names of its functions."""
    return Compiler(processor or host()).object(text)


def assembly(text: str, processor: Processor | None = None) -> str:
    """The assembly of a text."""
    return Compiler(processor or host()).assembly(text)


def optimized(text: str, processor: Processor | None = None) -> str:
    """The text after LLVM's passes."""
    return Compiler(processor or host()).optimized(text)


class Compiler:
    """An LLVM pipeline for a processor. Compilers run in parallel, each in its own thread."""

    def __init__(
        self, processor: Processor, *, brief: bool = False, optimized: bool = False
    ) -> None:
        llvm = binding()
        self._machine = target_machine(processor, 0 if brief else 2)
        self._processor = processor
        # Other processors lack reciprocal estimates, or theirs are too coarse.
        self._estimates = processor.has("avx512f")
        self._layout = str(self._machine.target_data)
        # Kernels are emitted vectorized and blocked: LLVM's default passes make none of them faster
        # (measured on whole steps), and take as long as code generation.
        options = llvm.create_pipeline_tuning_options(speed_level=2 if optimized else 1)
        self._builder = llvm.create_pass_builder(self._machine, options)
        rolled = llvm.create_pipeline_tuning_options(speed_level=2)
        rolled.loop_unrolling = False
        self._rolled = llvm.create_pass_builder(self._machine, rolled)
        self._optimized = optimized
        self._passes = llvm.create_new_module_pass_manager()
        # Supplied functions are calls until here; what they keep in memory becomes registers by
        # SROA.
        self._passes.add_always_inliner_pass()
        self._passes.add_sroa_pass()
        self._run_passes = unlocked("LLVMPY_RunNewModulePassManager")
        self._emit = unlocked("LLVMPY_TargetMachineEmitToMemory")

    def object(self, text: str) -> bytes:
        """The object of a text; `symbol` gives the names of its functions."""
        module = self._passed(text)
        for function in module.functions:
            if not function.is_declaration and function.linkage.name == "external":
                # Texts are compiled by themselves and linked together: a symbol has a digest of its
                # text, so that equal names of two kernels are two symbols.
                function.name = symbol(function.name, text)
        for variable in module.global_variables:
            if not variable.is_declaration and variable.linkage.name == "external":
                # All objects are linked into one engine: equal names of two kernels would clash.
                variable.linkage = "internal"
        return self._emitted(module, to_object=True)

    def assembly(self, text: str) -> str:
        """The assembly of a text."""
        return self._emitted(self._passed(text), to_object=False).decode()

    def optimized(self, text: str) -> str:
        """The text after LLVM's passes."""
        return str(self._passed(text))

    def _passed(self, text: str) -> Any:
        """The verified module of a text, after the passes."""
        try:
            # Texts are the same for every processor and cached by their content; the choice is made
            # here.
            exact = text if self._estimates else text.replace(QUICK_DIVISION, "fdiv")
            whole = supplied(exact, self._processor)
            # A context retains everything it has parsed: each module gets its own.
            module = binding().parse_assembly(whole, binding().create_context())
            module.verify()
        except RuntimeError as error:
            raise WeftError(
                f"LLVM rejects the text of a kernel: {str(error).strip()}",
                help="this is a bug in weft; `weft kernels` shows the text",
            ) from error
        module.triple = self._machine.triple
        module.data_layout = self._layout
        # LLVM's own list of passes is used up by a module.
        builder = self._rolled if len(text) > _UNROLLED else self._builder
        passes = builder.getModulePassManager() if self._optimized else self._passes
        self._run_passes(passes, module, builder)
        return module

    def _emitted(self, module: Any, *, to_object: bool) -> bytes:
        from llvmlite.binding import ffi

        with ffi.OutputString() as problem:
            buffer = self._emit(self._machine, module, int(to_object), problem)
            if not buffer:
                raise WeftError(
                    f"LLVM cannot generate code for a kernel: {problem}",
                    help="this is a bug in weft",
                )
        try:
            start, size = (
                ffi.lib.LLVMPY_GetBufferStart(buffer),
                ffi.lib.LLVMPY_GetBufferSize(buffer),
            )
            # A copy: the buffer is LLVM's, and freed below.
            return ctypes.string_at(start, size)
        finally:
            ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def unlocked(name: str) -> Callable[..., Any]:
    """A function of llvmlite's library without the lock that llvmlite holds around every call.

    LLVM is thread-safe if each thread has its own context, target machine and passes, as every
    Compiler has. If llvmlite's library cannot be located, the locked function is used: compilers
    then run one at a time.
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
