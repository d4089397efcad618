"""Serialized programs: an executable's container, and the metadata for JAX.

Besides the tiled program, which is verified and loaded, it holds the compile options and the
optimized program, the source of texts and costs. If options differ that affect kernels, the
optimized program is tiled again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial

from weft.capture.normalize.absorb_composites import absorb_composites
from weft.capture.stablehlo.mlir_parser import read_in_process
from weft.emit import emit
from weft.emit.numpy import host_of
from weft.errors import Unsupported, WeftError
from weft.executable.container import MAGIC, Container, open_container
from weft.executable.container_writing import Section, container_bytes
from weft.executable.files import program_sections, read
from weft.ir.module import Module
from weft.ir.read import read_module
from weft.jax.buffers.client import the_client
from weft.jax.patches.caching import NOT_STORED
from weft.jax.programs.compiling import PjrtExecutable, compile_request
from weft.jax.programs.dumping import dump
from weft.jax.programs.options import PjrtOptions
from weft.jax.programs.placement import Placement, placement
from weft.jax.versions import makers
from weft.knobs import TRACE
from weft.ops import BY_NAME
from weft.ops.custom_calls.callbacks import bind_functions, calls_python
from weft.pipeline import OPTIMIZED, Program, compile_module, local_program
from weft.run import LocalProgram
from weft.targets import target_named
from weft.trace import Trace
from weft.traced import record_prediction, trace_program

OPTIONS, MODULE, MADE_BY, FINGERPRINT = "options", "optimized", "made-by", "fingerprint"


def serialized(executable: PjrtExecutable) -> bytes:
    """Serialize a compiled program; one with Python callbacks is tiled again when loaded."""
    compiled = executable.program.executable
    assert compiled is not None, "the program was compiled to run"
    optimized = executable.module.text(locations=True).encode()
    notes = {
        OPTIONS: executable.options,
        MODULE: optimized,
        MADE_BY: json.dumps(makers()).encode(),
        FINGERPRINT: executable.fingerprint,
    }
    note_sections = [Section("note", data, name) for name, data in notes.items()]
    tiled = [] if executable.local.callbacks else program_sections(compiled)
    return container_bytes([*note_sections, *tiled])


def check_storable(executable: PjrtExecutable, functions: Mapping[int, int] | None) -> None:
    """Raise for a program with Python callbacks, unless JAX's cache binds them."""
    if executable.local.callbacks and functions is None:
        raise _unbound(executable.name)


def _unbound(name: str) -> Unsupported:
    return Unsupported(
        f"{name} {NOT_STORED}",
        help="leave out callbacks and debug prints, or compile it where it runs",
    )


def restored(
    data: bytes, options: bytes | None, functions: Mapping[int, int] | None = None
) -> PjrtExecutable:
    """Deserialize a compiled program, possibly with other options.

    `functions` are the numbers of its Python callbacks, by index.
    """
    container = _opened(data)
    _check_makers(json.loads(container.text("note", MADE_BY)))
    own, optimized = container.read("note", OPTIONS), container.read("note", MODULE)
    request = compile_request(options or own)
    how, module = request.options, _read(optimized)
    calls = any(calls_python(node.op) for node in module.nodes())
    if calls and functions is None:
        raise _unbound(module.name or "main")
    if calls:
        module = bind_functions(module, functions or {})
    place = placement(request, the_client().processes)
    if not calls and _of_kernels(how) == _of_kernels(compile_request(own).options):
        program = _loaded(container, module, how, place)
    else:
        program = compile_module(
            module,
            since=OPTIMIZED,
            target=how.target,
            fold_sums=how.fold_sums,
            tune=how.tune,
            excess_precision=how.excess_precision,
            approximate=how.approximate,
            stacked=place.stacked,
            process=place.process,
        )
    place.agree_on(program)
    stored = container.read("note", FINGERPRINT)
    made = PjrtExecutable(optimized, options or own, request, program, stored)
    if how.dump is not None:
        dump(how.dump, made, None, program.stages)
    return made


def _opened(data: bytes) -> Container:
    if not data.startswith(MAGIC):
        raise WeftError(
            "these bytes are not a program serialized by Weft",
            help="pass the result of serialize, on JAX_PLATFORMS=weft",
        )
    try:
        return open_container(data)
    except WeftError as error:
        raise WeftError(
            f"a stored program is corrupt: {error.message}", help="compile and store it again"
        ) from None


def _of_kernels(options: PjrtOptions) -> Sequence[object]:
    """The options that kernels depend on."""
    how = (options.target, options.fold_sums, options.tune)
    return (*how, options.excess_precision, options.approximate)


def _loaded(
    container: Container, module: Module, options: PjrtOptions, place: Placement
) -> Program:
    """The tiled program as stored."""
    trace = Trace(TRACE.value(), module.name)
    trace.write(OPTIMIZED, module)
    with trace.timed("read"):
        executable = read(container)
    target = target_named(
        None if executable.target == "llvm" else executable.target,
        fold_sums=options.fold_sums,
        tune=options.tune,
        excess_precision=options.excess_precision,
    )
    op_by_op = partial(
        local_program, module, fold=True, stacked=place.stacked, process=place.process
    )
    rest = (host_of(place.process), target, op_by_op)
    with trace.timed("emitted"):
        loaded = LocalProgram(executable.tiled, executable.plan, *rest)
    trace.write_executable("tiled", executable)
    trace_program(trace, module, loaded)
    emitted = emit(executable, target)
    record_prediction(loaded, emitted)
    return Program({OPTIMIZED: module}, emitted, loaded)


def _check_makers(found: dict[str, str]) -> None:
    if found != makers():
        versions = " and ".join([f"{name} {version}" for name, version in found.items()])
        raise WeftError(
            f"a stored program was made by {versions}",
            help="compile it again: programs can be loaded only by the versions that stored them",
        )


def _read(text: bytes) -> Module:
    """The optimized program from its text."""
    return absorb_composites(read_module(read_in_process(text), BY_NAME))
