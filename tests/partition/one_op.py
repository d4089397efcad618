"""Every op of the core alone, on random meshes, with random shardings around it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from tests.ops.catalogue import EXAMPLES
from tests.ops.example import Example
from tests.oracles.xla_local import wrapped
from tests.partition.differential import all_tensors
from tests.partition.program import Program
from tests.shard.fuzz import Sharder
from weft.capture import parse
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.attrs import Attrs
from weft.ir.module import Module, Value
from weft.ir.op import Op
from weft.ir.types import TensorType
from weft.ir.write import SHARDINGS, holds_shardings
from weft.mesh import Mesh, Sharding, parse_sharding

MESHES = (
    (("x", 2),),
    (("x", 4),),
    (("x", 2), ("y", 2)),
    (("x", 2), ("y", 3)),
    (("x", 4), ("y", 2)),
    (("x", 2), ("y", 1), ("z", 2)),
)
LENGTH = 64  # roundings in one op
# Ops that have no partitioned answer of their own, and why.
EXEMPT = {
    "stablehlo.rng": "random numbers without a state: any are right",
    "interpreter.probe": "writes files",
    "interpreter.print": "prints",
}


class Skip(Exception):
    """Why an example is not a program that can be partitioned."""


def case(example: Example, seed: int) -> Program:
    """An example with random shardings, propagated or all told."""
    module = example.module()
    if "main" not in module.functions:
        raise Skip("it has no main")
    if not all_tensors(module):
        raise Skip("its ends are not static tensors")
    if devices := getattr(example, "devices", None):  # what devices do by hand
        if module.meshes:
            raise Skip("its groups are axes of a mesh of its own")
        return Program(wrapped(module, devices).text(), False, example.arrays, seed, LENGTH)
    if module.meshes or "mesh<[" in module.text():  # it brings a mesh of its own
        return Program(module.text(), False, example.arrays, seed, LENGTH)
    rng = random.Random(seed)
    module = parse(replace(module, meshes={"mesh": Mesh(rng.choice(MESHES))}).text())
    is_flat = all(not callable_in(n) for n in module.nodes())
    if is_flat and rng.random() < 0.6:
        return Program(told(module, rng).text(), True, example.arrays, seed, LENGTH)
    return Program(annotated(module, rng).text(), False, example.arrays, seed, LENGTH)


def callable_in(node: Any) -> bool:
    """Whether shardings inside a node hang together with those around it."""
    return bool(node.op.control and node.regions) or hasattr(node.op, "callee")


def told(module: Module, rng: random.Random) -> Module:
    """Every argument, every node and every result has a sharding of its own, open nowhere."""
    main = module.function("main")
    table: dict[Value, object] = {}

    def told_of(values: tuple[Value, ...]) -> Iterator[Sharding | None]:
        for value in values:
            assert isinstance(value.type, TensorType)
            made = drawn(module.meshes["mesh"], value.type, rng) if rng.random() < 0.85 else None
            if made is not None:
                table[value] = made
            yield made

    list(told_of(main.body.args))
    for node in main.body.nodes:
        is_plain = all(isinstance(t, TensorType) and t.is_static for t in node.types)
        if is_plain and not holds_shardings(type(node.op)):
            list(told_of(node.results))
    ends = [
        table.get(v) if rng.random() < 0.7 else drawn(module.meshes["mesh"], v.type, rng)
        for v in main.body.results
    ]
    attrs = tuple((("sdy.sharding", str(s)),) if s is not None else () for s in ends)
    functions = dict(module.functions) | {"main": replace(main, res_attrs=attrs)}
    return replace(module.with_functions(functions), tables={**module.tables, SHARDINGS: table})


def drawn(mesh: Mesh, type: Any, rng: random.Random) -> Sharding:
    """A closed sharding; only what can be summed is unreduced."""
    while True:
        made = parse_sharding(_text(mesh, type, rng))
        if not made.unreduced or type.dtype.is_float or type.dtype.name in ("i32", "i64"):
            return made


def _text(mesh: Mesh, type: TensorType, rng: random.Random) -> str:
    found = parse_sharding(Sharder(rng, "mesh", mesh.axes).draw(type.sizes))
    dims = tuple(replace(d, is_open=False, priority=None) for d in found.dims)
    return str(replace(found, dims=dims))


def annotated(module: Module, rng: random.Random) -> Module:
    """The module with random shardings on some arguments and results, to be propagated."""
    mesh = Sharder(rng, "mesh", module.meshes["mesh"].axes)
    main = module.function("main")

    def attrs(values: tuple[Value, ...], chance: float) -> tuple[Attrs, ...]:
        made: list[Attrs] = []
        for value in values:
            assert isinstance(value.type, TensorType)
            given = rng.random() < chance
            text = f"#sdy.sharding{mesh.draw(value.type.sizes)}"
            if "unreduced" in text and not value.type.dtype.is_float:
                given = False
            made.append((("sdy.sharding", text),) if given else ())
        return tuple(made)

    main = replace(
        main, arg_attrs=attrs(main.body.args, 0.7), res_attrs=attrs(main.body.results, 0.4)
    )
    return module.with_functions(dict(module.functions) | {"main": main})


def cases(op: type[Op], count: int, seed: int = 0) -> list[Program | Skip]:
    """Examples of an op, drawn the same way every time."""
    found: list[Program | Skip] = []

    @seeded(seed)
    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        derandomize=False,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(EXAMPLES[op], st.integers(0, 10**6))
    def each(example: Example, number: int) -> None:
        try:
            made = case(example, number)
            first, again = (evaluate(made.module(), *example.arrays) for _ in range(2))
            if any(a.tobytes() != b.tobytes() for a, b in zip(first, again, strict=True)):
                raise Skip("it gives something else each time")
            found.append(made)
        except Skip as skip:
            found.append(skip)
        except WeftError as error:
            found.append(Skip(f"it does not run on one device: {error.message}"))

    if op.name in EXEMPT:
        return [Skip(EXEMPT[op.name])]
    try:
        each()
    except WeftError as error:  # an example that is not a program
        found.append(Skip(f"it cannot be drawn: {error.message}"))
    return found
