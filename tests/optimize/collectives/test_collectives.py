"""What the passes on collectives promise beyond equal results: fewer of them, and where not."""

from __future__ import annotations

import numpy as np
import pytest

from weft.capture import parse
from weft.cost.collective_time import GroupExtent
from weft.cost.prices import knee
from weft.evaluate import evaluate
from weft.ir.dense import Dense
from weft.ir.module import Function, Module, Node, Region, Value, apply
from weft.ir.types import BOOL, TensorType, tensor
from weft.ir.verify import verify
from weft.machine import HOST, machine
from weft.mesh import Axis, Mesh, MeshAxes
from weft.ops.combiners import combiner
from weft.ops.control import If, While
from weft.ops.distributed.collective import AllGather, AllReduce
from weft.ops.distributed.local import CHANNEL, AxisIndex
from weft.ops.elementwise.pointwise import Add, Compare, Negate
from weft.ops.shape import Constant
from weft.optimize import (
    canonicalize_collectives,
    combine_collectives,
    cse,
    drop_dead,
    hoist_gather,
    simplify,
)

MESH = Mesh(x=2, y=4)
X = tensor(4, 4)


def groups(*names: str) -> MeshAxes:
    return MeshAxes("mesh", tuple(Axis(name) for name in names))


def reduced(value: Value, *names: str) -> Node:
    op = AllReduce(groups(*names), CHANNEL, use_global_device_ids=True)
    assert isinstance(value.type, TensorType)
    return apply(op, value, regions=(combiner("add", value.type),))


def gathered(value: Value, *names: str) -> Node:
    assert isinstance(value.type, TensorType)
    rows, columns = value.type.sizes
    count = int(np.prod([MESH.axis_sizes[name] for name in names]))
    outs = (value.type.with_shape((rows * count, columns)),)
    return apply(AllGather(0, groups(*names), outs, CHANNEL, use_global_device_ids=True), value)


def program(args: tuple[Value, ...], nodes: list[Node], *results: Value) -> Module:
    main = Function("main", Region(args, nodes, results))
    return verify(Module({"main": main}, {"mesh": MESH}))


def collectives(module: Module) -> list[Node]:
    return [node for node in module.nodes() if node.op.collective]


def many(count: int, type: TensorType = X) -> Module:
    """So many all_reduces of arguments, each read by a node that stands right behind it."""
    args = tuple(Value(type, None, n) for n in range(count))
    nodes = [n for v in args for n in _reduced_and_read(v)]
    return program(args, nodes, *[n.results[0] for n in nodes[1::2]])


def _reduced_and_read(value: Value) -> list[Node]:
    first = reduced(value, "y")
    return [first, apply(Negate(), first.results[0])]


@pytest.mark.parametrize(
    ("most_bytes", "most_ops", "left"),
    [
        (10**6, 2048, 1),
        (X.nbytes * 3, 2048, 3),
        (X.nbytes * 3 - 1, 2048, 4),
        (X.nbytes - 1, 2048, 8),
        (10**6, 5, 2),
        (0, 2048, 8),
        (-1, 2048, 8),
        (10**6, 0, 8),
    ],
)
def test_combining_keeps_to_its_limits(most_bytes: int, most_ops: int, left: int):
    module = many(8)
    after = verify(combine_collectives(module, combine_bytes=most_bytes, combine_ops=most_ops))
    assert len(collectives(after)) == left
    assert sum(len(node.operands) for node in collectives(after)) == 8


def test_the_limit_is_that_of_the_machine_unless_it_is_given():
    h100 = machine("8xh100")
    wide = tensor(int(knee("reduce", GroupExtent(4), h100)) // 4)
    assert len(collectives(combine_collectives(many(4, wide), machine=h100))) == 1
    assert len(collectives(combine_collectives(many(5, wide), machine=h100))) == 2
    given = combine_collectives(many(5, wide), machine=h100, combine_bytes=wide.nbytes)
    assert len(collectives(given)) == 5
    # Where nothing overlaps, or without a machine, the limit is XLA's.
    large = tensor(6 << 20)
    for on in (HOST, None):
        assert len(collectives(combine_collectives(many(2, large), machine=on))) == 2


def test_combined_collectives_know_all_their_lines():
    text = many(3).text()
    before = parse(text)
    (node,) = collectives(combine_collectives(before))
    assert len(node.loc.frames) == 3


def test_chains_are_not_combined_into_themselves():
    """a -> b and c -> d: a and c may be one, and then b and d; never a with d and b with c."""
    args = tuple(Value(X, None, n) for n in range(2))
    nodes: list[Node] = []
    ends: list[Value] = []
    for value, names in zip(args, (("x", "y"), ("y", "x")), strict=True):
        for name in names:
            nodes.append(reduced(value, name))
            value = nodes[-1].results[0]
        ends.append(value)
    after = verify(combine_collectives(program(args, nodes, *ends)))
    assert len(collectives(after)) == 3


def branch_on_place(loops: int) -> Module:
    """Devices with x = 0 run a loop so often that reduces along y; the others do nothing."""
    x = Value(X, None, 0)
    place = apply(AxisIndex(groups("x")))
    zero = apply(Constant(_number(0)))
    first = apply(Compare("EQ", "SIGNED"), place.results[0], zero.results[0])
    start = apply(Constant(_number(0)))
    limit = apply(Constant(_number(loops)))
    args = (Value(start.types[0], None, 0), Value(X, None, 1))
    again = apply(Compare("LT", "SIGNED"), args[0], limit.results[0])
    condition = Region(args, [limit, again], again.results)
    args = (Value(start.types[0], None, 0), Value(X, None, 1))
    one = apply(Constant(_number(1)))
    count = apply(Add(), args[0], one.results[0])
    total = reduced(x, "y")
    added = apply(Add(), args[1], total.results[0])
    body = Region(args, [one, count, total, added], (count.results[0], added.results[0]))
    loop = apply(While(), start.results[0], x, regions=(condition, body))
    inside = Region((), [start, loop], (loop.results[1],))
    chosen = apply(If(), first.results[0], regions=(inside, Region((), [], (x,))))
    return program((x,), [place, zero, first, chosen], chosen.results[0])


def _number(value: int) -> Dense:
    return Dense(np.asarray(value, np.int32))


@pytest.mark.parametrize("loops", (0, 2))
def test_a_loop_that_some_devices_run_keeps_what_they_meet_in(loops: int):
    module = branch_on_place(loops)
    after = hoist_gather(module)
    (loop,) = [node for node in after.nodes() if isinstance(node.op, While)]
    inside = [n for region in loop.regions for n in region.nodes if n.op.collective]
    assert not inside, "all devices along y take the same branch, so it may be done before the loop"
    arrays = np.arange(8 * 16, dtype=np.float32).reshape(8, 4, 4)
    (found,), (expected,) = (evaluate(m, arrays, devices=8) for m in (after, module))
    np.testing.assert_array_equal(found, expected)


def test_a_collective_of_devices_that_part_stays_in_its_loop():
    module = branch_on_place(0)
    nodes = list(module.nodes())
    text = module.text().replace('axis_ref<name = "y">', 'axis_ref<name = "x">')
    parted = parse(text)
    assert len(list(parted.nodes())) == len(nodes)
    assert hoist_gather(parted) is parted


def test_a_dead_collective_goes_but_not_its_neighbours():
    x = Value(X, None, 0)
    nodes = [reduced(x, "x"), reduced(x, "y"), gathered(x, "y")]
    after = drop_dead(program((x,), nodes, nodes[1].results[0]))
    assert [node.op for node in collectives(after)] == [nodes[1].op]


def test_branches_keep_their_own_collectives():
    """Equal collectives in two branches are not one: who takes one branch is not in the other."""
    x, flag = Value(X, None, 0), Value(TensorType((), BOOL), None, 1)
    branches = []
    for _ in range(2):
        node = reduced(x, "y")
        branches.append(Region((), [node], node.results))
    chosen = apply(If(), flag, regions=tuple(branches))
    after = cse(program((x, flag), [chosen], chosen.results[0]))
    assert len(collectives(after)) == 2


def test_replicas_are_left_alone():
    """Over replicas, a group is not part of the mesh."""
    x = Value(X, None, 0)
    node = apply(AllReduce(((0, 1),)), x, regions=(combiner("add", X),))
    module = program((x,), [node], node.results[0])
    assert canonicalize_collectives(module) is module


def test_gathers_that_travel_as_bytes_of_their_own_type():
    """A gather is moved before a convert only where fewer bytes travel."""
    text = """
    module {
      sdy.mesh @mesh = <["x"=2]>
      func.func @main(%0: tensor<4xf32>) -> tensor<8xf64> {
        %1 = stablehlo.convert %0 : (tensor<4xf32>) -> tensor<4xf64>
        %2 = "stablehlo.all_gather"(%1) <{all_gather_dim = 0 : i64,
          channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids
        }> : (tensor<4xf64>) -> tensor<8xf64>
        return %2 : tensor<8xf64>
      }
    }
    """
    (node,) = collectives(canonicalize_collectives(parse(text)))
    assert node.types == (tensor(8, dtype="f32"),)


@pytest.mark.parametrize("dtype", ("i4", "ui8", "i64", "f16", "bf16", "f8E4M3FN", "complex<f32>"))
def test_sums_of_equal_values(dtype: str):
    """A constant is equal everywhere; its sum is a multiple, where the type can say so."""
    type = tensor(2, dtype=dtype)
    node = apply(Constant(Dense(np.ones(2).astype(type.dtype.numpy))))
    total = reduced(node.results[0], "x", "y")
    module = program((), [node, total], total.results[0])
    after = simplify(canonicalize_collectives(module))
    (found,), (expected,) = (evaluate(m, devices=8) for m in (after, module))
    np.testing.assert_array_equal(found, expected)
    exact = dtype not in ("i4", "complex<f32>")
    assert bool(collectives(after)) != exact
