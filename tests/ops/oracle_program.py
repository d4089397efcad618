"""An example as a program for StableHLO's interpreter: constants in, real numbers out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.ops.example import Example
from tests.ops.program import OnDevices, Program
from weft.ir.dense import Dense
from weft.ir.module import Function, Module, Node, Region, Value, apply
from weft.ir.types import Array, TensorType, Type
from weft.ops import BY_NAME
from weft.ops.control import Call, RunParallel
from weft.ops.shape import Constant

THREADS = 2  # the interpreter runs a device on a thread, and has as many as there are cores


def interpreter_text(example: Example) -> str | None:
    """A module whose main takes nothing; None if the interpreter cannot be asked."""
    module = example.module()
    program = module.function("main")
    if not all(isinstance(t, TensorType) for t in program.result_types):
        return None
    if isinstance(example, OnDevices):
        if example.devices > THREADS:
            return None
        return _main(module, _on_devices(example, program))
    constants = [apply(Constant(Dense(a))) for a in example.arrays]
    operands = [node.results[0] for node in constants]
    if isinstance(example, Program):
        call = Node(Call("program", program.result_types), tuple(operands), program.result_types)
    else:
        call = apply(example.op, *operands, regions=example.regions)
        module = Module({})
    return _main(module, [*constants, call])


def _on_devices(example: OnDevices, program: Function) -> list[Node]:
    """Every device runs the program on its own slice of the arrays."""
    slices = [a[device] for device in range(example.devices) for a in example.arrays]
    constants = [apply(Constant(Dense(a))) for a in slices]
    outs = program.result_types * example.devices
    op = RunParallel((("program",) * example.devices,), outs)
    return [*constants, Node(op, tuple(n.results[0] for n in constants), outs)]


def _main(module: Module, nodes: list[Node]) -> str:
    """The module with a new main; complex results as real and imaginary parts."""
    results: list[Value] = []
    for value in nodes[-1].results:
        if _is_complex(value.type):
            parts = [apply(BY_NAME[f"stablehlo.{name}"](), value) for name in ("real", "imag")]
            nodes.extend(parts)
            results += [part.results[0] for part in parts]
        else:
            results.append(value)
    others = {
        "program" if name == "main" else name: function
        for name, function in module.functions.items()
    }
    renamed = {
        name: Function(name, f.body, "private", f.arg_attrs, f.res_attrs, f.attrs)
        for name, f in others.items()
    }
    main = Function("main", Region((), nodes, tuple(results)))
    return Module({"main": main, **renamed}, module.meshes).text()


def _is_complex(type: Type) -> bool:
    return isinstance(type, TensorType) and type.dtype.is_complex


def _complex(real: Array, imag: Array) -> Array:
    """Both parts as they are; a sum would make NaN of infinities."""
    return np.stack([real, imag], -1).view(f"c{2 * real.itemsize}")[..., 0]


def joined(parts: Sequence[Array], like: Sequence[Array]) -> list[Array]:
    """The interpreter's results as ours are: complex again, and stacked if there are devices."""
    remaining = list(parts)
    devices = 0
    if len(like) and sum(1 + (a.dtype.kind == "c") for a in like) < len(parts):
        devices = len(like[0])
    rows = []
    for _ in range(max(devices, 1)):
        row = []
        for array in like:
            value = remaining.pop(0)
            if array.dtype.kind == "c":
                value = _complex(value, remaining.pop(0))
            row.append(value)
        rows.append(row)
    if not devices:
        return rows[0]
    return [np.stack(each) for each in zip(*rows, strict=True)]
