"""No op is replicated silently: split along a factor of its rule, an op sends no more than it must.

Pass-through factors need no collective at all; a reduction leaves one reduction a result, and no
gather.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings

from tests.ops.catalogue import CHECKED, EXAMPLES
from tests.ops.example import Example
from tests.partition.differential import all_tensors, check, partitioned
from tests.partition.one_op import EXEMPT
from weft.capture import parse
from weft.ir.module import Module, Node
from weft.ir.op import Op, rule
from weft.ir.rule import Dims
from weft.ir.write import SHARDINGS, holds_shardings
from weft.mesh import Axis, DimSharding, Mesh, Sharding
from weft.ops.scatter import Scatter, ScatterDims

MESH = Mesh(x=2)
# Ops whose rule promises more than pieces alone can do, and why.
HARDER = {
    "stablehlo.rng_bit_generator": "every device makes all bits: they must not depend on the mesh",
}


@dataclass(frozen=True)
class Split:
    """An op split along one factor."""

    module: Module
    role: str
    text: str  # the factor in its rule


def splits(example: Example) -> Iterator[Split]:
    """An example split along each factor that can be halved."""
    module = example.module()
    if getattr(example, "devices", None) or "main" not in module.functions or module.meshes:
        return
    nodes = module.function("main").body.nodes
    if not all_tensors(module) or len(nodes) != 1 or holds_shardings(type(nodes[0].op)):
        return
    node = nodes[0]
    if isinstance(node.op, Scatter) and _hits_the_first(node.op.scatter_dimension_numbers):
        return
    found = rule(node.op, node.operand_types, node.bodies)
    for index, (name, factor) in enumerate(zip(found.names(), found.factors, strict=True)):
        if factor.size % MESH.size or not factor.size:
            continue
        if factor.role == "pass" or (factor.role == "reduction" and factor.combine):
            shardings = [_along(dims, index) for dims in (*found.operands, *found.results)]
            if all(s is not None for s in shardings) and any(s != _whole(s) for s in shardings):
                made = _told(module, node, shardings)  # type: ignore[arg-type]
                yield Split(made, factor.role, f"{name} of {found}")


def _hits_the_first(dims: ScatterDims) -> bool:
    """Whether a dim is inserted and not indexed: only the piece that holds its first element."""
    return not set(dims.inserted_window_dims) <= set(dims.scatter_dims_to_operand_dims)


def _along(dims: Dims, index: int) -> Sharding | None:
    """A tensor split along a factor; None where the factor is not the major one of its dim."""
    parts = []
    for factors in dims:
        if index in factors[1:]:
            return None
        parts.append(DimSharding((Axis("x"),) if index in factors else ()))
    return Sharding("mesh", tuple(parts))


def _whole(sharding: Sharding | None) -> Sharding:
    assert sharding is not None
    return Sharding("mesh", (DimSharding(),) * len(sharding.dims))


def _told(module: Module, node: Node, shardings: list[Sharding]) -> Module:
    main = module.function("main")
    tensors = [*main.body.args, *node.results]
    ends = tuple((("sdy.sharding", str(s)),) for s in shardings[len(node.operands) :])
    functions = dict(module.functions) | {"main": replace(main, res_attrs=ends)}
    table = dict(zip(tensors, shardings, strict=True))
    made = replace(module.with_functions(functions), meshes={"mesh": MESH})
    return replace(made, tables={SHARDINGS: table})


def check_split(split: Split) -> None:
    """Only what must be sent is sent."""
    local = partitioned(split.module)
    met = [n.op.name for n in local.nodes() if n.op.collective]
    if split.role == "pass":
        assert not met, f"{met} for {split.text}\n{split.module.text()}{local.text()}"
        return
    results = len(split.module.function("main").body.results)
    reductions = [name for name in met if name in ("stablehlo.all_reduce", "weft.reduce_scatter")]
    assert met == reductions, f"{met} for {split.text}\n{split.module.text()}{local.text()}"
    assert len(met) <= results, f"{met} for {split.text}\n{split.module.text()}{local.text()}"


@pytest.mark.parametrize("op", [o for o in CHECKED if o.name not in EXEMPT], ids=lambda o: o.name)
def test_no_op_sends_more_than_it_must(op: type[Op]):
    if op.name in HARDER:
        pytest.skip(HARDER[op.name])

    @settings(max_examples=8, suppress_health_check=list(HealthCheck))
    @given(EXAMPLES[op])
    def each(example: Example) -> None:
        for split in splits(example):
            check_split(split)

    each()


def test_a_gather_is_noticed():
    module = parse("""func.func @main(%0: tensor<4xf32>) -> tensor<4xf32> {
      %1 = stablehlo.reverse %0, dims = [0] : tensor<4xf32>
      return %1 : tensor<4xf32>
    }""")
    main = module.function("main")
    split = Sharding("mesh", (DimSharding((Axis("x"),)),))
    told = _told(module, main.body.nodes[0], [split, split])
    check(replace(module, meshes={"mesh": MESH}), sharded=told)
    with pytest.raises(AssertionError, match="permute"):
        check_split(Split(told, "pass", "the reversed dim"))
