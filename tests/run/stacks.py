"""Programs and arguments for lockstep tests: values that vary along some axes of a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from tests.tolerance import assert_close
from weft.array.stacked import Stacked, stack
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.module import Module
from weft.ir.types import Array, TensorType
from weft.mesh import Axis, DimSharding, Mesh, Sharding
from weft.pipeline import local_program
from weft.run import LocalProgram

MESH = Mesh(a=2, b=3)


def vary(array: Array, axes: Sequence[str], mesh: Mesh = MESH) -> Array:
    """An array for each device: the elements rolled on, differently along these axes."""
    pieces = []
    for place in range(mesh.size):
        at = mesh.position(place)
        shift = sum((7 * n + 1) * at[n] for n, (name, _) in enumerate(mesh.axes) if name in axes)
        pieces.append(np.roll(array.reshape(-1), shift).reshape(array.shape))
    return np.stack(pieces)


def along(module: Module, axes: Sequence[Sequence[str]], mesh: Mesh = MESH) -> Module:
    """The module with arguments that are said to vary along axes, each along its own."""
    main = module.function("main")
    attrs = []
    for value, names in zip(main.body.args, axes, strict=True):
        rank = value.type.rank if isinstance(value.type, TensorType) else 0
        unreduced = tuple(Axis(n) for n in names)
        sharding = Sharding("mesh", (DimSharding(),) * rank, unreduced=unreduced)
        attrs.append((("weft.sharding", str(sharding)),))
    functions = {**module.functions, "main": replace(main, arg_attrs=tuple(attrs))}
    return replace(module, functions=functions, meshes={**module.meshes, "mesh": mesh})


def lockstep(
    module: Module, *stacks: Array, devices: int | None = None, length: int = 1
) -> tuple[Array, ...]:
    """What a program gives in lockstep; arguments and results have a leading dim of devices."""
    program = local_program(module, devices=devices)
    given = [shared(program, n, a) for n, a in enumerate(stacks)]
    return tuple(s.pieces() for s in run_often(program, given, length))


def run_often(
    program: LocalProgram, given: Sequence[Stacked], length: int = 1
) -> tuple[Stacked, ...]:
    """What a program gives; it gives the same again, and runs on other values change nothing."""
    first = program.checked(*given)
    again = program(*given)  # now into memory that is planned
    kept = [s.on_host().data.copy() for s in (*first, *again)]
    with suppress(WeftError):  # these values may be none that the program takes
        program(*[Stacked(np.roll(s.data, 1), s.sub_axes) for s in given])
    for stack_, before in zip((*first, *again), kept, strict=True):
        assert_close(stack_.on_host().data, before, what="a result after another run")
    for a, b in zip(first, again, strict=True):
        assert_close(a.on_host().data, b.on_host().data, length, "the second run")
    for a, b in zip(again, program(*given), strict=True):
        assert_close(a.on_host().data, b.on_host().data, what="the third run")
    return again


def shared(program: LocalProgram, index: int, pieces: Array) -> Stacked:
    """A stack that holds once what the program takes to be equal."""
    full = stack(np.asarray(pieces), program.sub_axes)
    head = program.stack_dims.shape(program.masks[index])
    window = tuple(slice(0, size) for size in head)
    return Stacked(full.data[window], program.sub_axes)


def assert_same(module: Module, *stacks: Array, length: int = 1, devices: int = 0) -> None:
    """Lockstep gives what the evaluator gives, or both refuse."""
    count = devices or (len(stacks[0]) if stacks else next(iter(module.meshes.values())).size)
    try:
        expected = evaluate(module, *stacks, devices=count)
    except WeftError:
        try:
            lockstep(module, *stacks, devices=count)
        except WeftError:
            return
        raise AssertionError("lockstep runs what the evaluator refuses") from None
    made = lockstep(module, *stacks, devices=count, length=length)
    for number, (ours, theirs) in enumerate(zip(made, expected, strict=True)):
        assert_close(ours, theirs, length, f"result {number}")
