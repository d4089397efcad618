"""Compilation of JAX's programs, through the common pipeline."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

import numpy as np

from weft.capture.stablehlo.bytecode import read_bytecode
from weft.errors import Unsupported
from weft.ir.module import Module
from weft.ir.types import TensorType
from weft.ir.write import node_text
from weft.jax.buffers.client import the_client
from weft.jax.native.handles import UNIMPLEMENTED, PjrtError
from weft.jax.programs.dumping import dump
from weft.jax.programs.options import notify_of_ignored_flags, options_in
from weft.jax.programs.placement import CompileRequest, placement
from weft.jax.programs.profiling import span
from weft.jax.questions.inspecting import tell_shardings
from weft.jax.questions.protos import device_numbers
from weft.jax.versions import makers
from weft.knobs import TRACE
from weft.ops.custom_calls.callbacks import INSPECT
from weft.ops.custom_calls.custom import CustomCall
from weft.pipeline import OPTIMIZED, Program, compile_module
from weft.records import dataclass
from weft.run import LocalProgram
from weft.trace import Trace

# Bounds of a synchronous call: launches and host nodes, and bytes that these touch.
_MAX_UNITS = 32
_MAX_PEAK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PjrtExecutable:
    """A compiled program, with its metadata for JAX."""

    code: bytes  # JAX's name, or the stored one
    options: bytes
    request: CompileRequest
    program: Program
    fingerprint: bytes  # of its source; also after deserialization

    @property
    def local(self) -> LocalProgram:
        """The loaded program."""
        return self.program.local

    @property
    def module(self) -> Module:
        """The local program."""
        return self.program.module

    @property
    def name(self) -> str:
        """JAX's name of it."""
        return self.program.module.name or "main"

    def runs_at_once(self) -> bool:
        """Whether a call runs synchronously: it is shorter than enqueuing, or calls Python soon.

        JAX's own devices do the same: an exception of a callback is then raised at the call.
        """
        local = self.local
        if not local.callbacks:
            return local.is_brief
        few = len(local.code.units) <= _MAX_UNITS and local.memory().peak <= _MAX_PEAK_BYTES
        return few and not local.code.inner

    @property
    def results(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """The local shape and type of every result."""
        types = self.local.result_types
        assert all(isinstance(type, TensorType) for type in types), "JAX keeps tokens to itself"
        return [(t.sizes, t.dtype.numpy) for t in types if isinstance(t, TensorType)]


def compiled(code: bytes, format: str, options: bytes) -> PjrtExecutable:
    """Compile a program of JAX."""
    if format != "mlir":
        raise PjrtError(UNIMPLEMENTED, f"programs in the format {format!r}; StableHLO is read")
    notify_of_ignored_flags(len(the_client().devices))
    request = compile_request(options)
    place = placement(request, the_client().processes)
    begin = time.perf_counter()
    received = read_bytecode(code)
    _check_partitioner(received)
    how = request.options
    trace = Trace(TRACE.value(), received.name)
    trace.took("read", time.perf_counter() - begin)
    with span("compile", received.name or "main"):
        program = compile_module(
            received,
            pieces=True,
            level=how.level,
            machine=how.machine,
            target=how.target,
            fold_sums=how.fold_sums,
            excess_precision=how.excess_precision,
            approximate=how.approximate,
            tune=how.tune,
            numbers=how.numbers,
            stacked=place.stacked,
            process=place.process,
            trace=trace,
        )
    _check_calls(program)
    if INSPECT.encode() in code:
        tell_shardings(program)
    if how.explain:
        from weft.jax.programs.explained import explain  # it imports the search for advice

        devices = request.replicas * request.partitions
        explain(program, devices, how.machine, also_nothing=how.explain_nothing)
    # the source module is dropped
    last = Program({OPTIMIZED: program.module}, program.executable, program.local)
    place.agree_on(last)
    made = PjrtExecutable(code, options, request, last, _fingerprint(code, options))
    if how.dump is not None:
        dump(how.dump, made, received, program.stages)
    return made


def _fingerprint(code: bytes, options: bytes) -> bytes:
    """The fingerprint of a compiled program; cheap, as JAX requests it at every compilation."""
    made = hashlib.sha256(json.dumps(makers()).encode())
    made.update(options)
    made.update(code)
    return made.hexdigest().encode()


def _check_partitioner(module: Module) -> None:
    """Raise for GSPMD shardings, which Weft would ignore; JAX has replaced them by Shardy."""
    for function in module.functions.values():
        signature_attrs = [
            (attrs, function.loc) for attrs in (*function.arg_attrs, *function.res_attrs)
        ]
        nodes = [(node.attrs, node.loc) for node in function.body.nodes if node.attrs]
        for attrs, loc in (*signature_attrs, *nodes):
            if any(name == "mhlo.sharding" and "devices=" in text for name, text in attrs):
                raise Unsupported(
                    "shardings of GSPMD: Weft reads those of Shardy",
                    help="leave jax_use_shardy_partitioner on, also where programs are exported",
                    loc=loc,
                )


def _check_calls(program: Program) -> None:
    """Raise for unknown custom calls, before anything runs."""
    if not program.local.calls_host:
        return
    for node in program.module.nodes():
        if isinstance(node.op, CustomCall) and node.op.known is None:
            raise Unsupported(
                f"unknown custom call {node.op.call_target_name!r}",
                help="write it with other functions, or call Python: jax.pure_callback",
                loc=node.loc,
                node=node_text(node),
            )


def compile_request(options: bytes) -> CompileRequest:
    """Parse compile options."""
    from jaxlib import _jax

    # keeps the parent message of its parts alive
    whole = _jax.CompileOptions.ParseFromString(options)
    built = whole.executable_build_options
    assigned = built.device_assignment
    devices = () if assigned is None else device_numbers(assigned.serialize())
    chosen = options_in(whole.env_option_overrides)
    return CompileRequest(built.num_replicas, built.num_partitions, devices, chosen)
