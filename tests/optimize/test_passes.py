"""Every pass: its golden texts, its meaning kept, its second run changing nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, composite

from tests.ops.draw import array, seeds
from tests.tolerance import assert_close
from weft.capture import parse
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.dense import Dense
from weft.ir.module import Function, Module, Node, Region, Value, apply
from weft.ir.types import BOOL, DTYPES, TensorType, tensor
from weft.ir.verify import verify
from weft.machine import machine
from weft.ops.control import If
from weft.ops.custom_calls.checks import ExpectEq
from weft.ops.elementwise.pointwise import Add, Maximum, Multiply, Negate, Subtract
from weft.ops.random import RngBitGenerator
from weft.ops.shape import Constant, Transpose
from weft.optimize import PASSES, PassOptions, cse, drop_dead, optimize, run_passes

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "optimize"
FILES = sorted(GOLDEN.glob("*/*.mlir"))
MARK = "// becomes\n"
BY_NAME = {run.__name__: run for run in PASSES}

Golden = Callable[[Path, str], None]
each_pass = pytest.mark.parametrize("run", PASSES, ids=lambda run: run.__name__)


def test_every_pass_has_golden_files():
    assert {path.parent.name for path in FILES} == set(BY_NAME)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_golden(path: Path, golden: Golden):
    text = path.read_text().partition(MARK)[0]
    named = re.match(r"// machine: (\w+)(?:, (\d+) bytes)?\n", text)
    options = PassOptions(machine(named[1])) if named else PassOptions()
    if named and named[2]:
        options = PassOptions(options.machine.with_memory(int(named[2])))
    before = parse(text)
    after = run_passes(before, [BY_NAME[path.parent.name]], options)
    golden(path, f"{named[0] if named else ''}{before.text()}{MARK}{after.text()}")


# Random programs

X = tensor(2, 2, dtype="i32")
SCALAR = TensorType((), BOOL)


@composite
def block(draw: DrawFn, seen: list[Value], depth: int, length: int) -> list[Node]:
    """Nodes that read what is before them, some of them equal, some unread, some with regions."""
    nodes: list[Node] = []
    values = [v for v in seen if v.type is X]
    for _ in range(draw(st.integers(1, length))):
        kind = draw(st.integers(0, 6 if depth else 5))
        pick = st.sampled_from(values)
        if kind == 0:
            node = apply(Constant(Dense(array((2, 2), DTYPES["i32"], draw(st.integers(0, 2))))))
        elif kind == 1:
            node = apply(draw(st.sampled_from((Negate(), Transpose((1, 0))))), draw(pick))
        elif kind == 5 and depth == 2:
            same = draw(pick)
            nodes.append(apply(ExpectEq(), same, same))
            continue
        elif kind == 6:
            node = draw(branches(values, seen[0], depth - 1))
        else:
            op = draw(st.sampled_from((Add(), Multiply(), Subtract(), Maximum())))
            node = apply(op, draw(pick), draw(pick))
        nodes.append(node)
        values.extend(node.results)
    return nodes


@composite
def branches(draw: DrawFn, values: list[Value], predicate: Value, depth: int) -> Node:
    """An if whose branches read the values around it."""
    regions = []
    for _ in range(2):
        nodes = draw(block([predicate, *values], depth, 3))
        inner = [v for n in nodes for v in n.results if v.type is X]
        regions.append(Region((), nodes, (draw(st.sampled_from([*values, *inner])),)))
    return apply(If(), predicate, regions=tuple(regions))


@composite
def programs(draw: DrawFn) -> Module:
    """A whole program."""
    args = (Value(SCALAR, None, 0), Value(X, None, 1), Value(X, None, 2))
    nodes = draw(block(list(args), 2, 12))
    values = [v for n in nodes for v in n.results if v.type is X] or list(args[1:])
    results = tuple(draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)))
    return verify(Module({"main": Function("main", Region(args, nodes, results))}))


def count(module: Module) -> int:
    return sum(1 for _ in module.nodes())


def checks(module: Module) -> int:
    return sum(1 for n in module.nodes() if isinstance(n.op, ExpectEq))


@each_pass
@settings(max_examples=60)
@given(programs(), seeds)
def test_meaning_is_kept(run: Callable[[Module], Module], module: Module, seed: int):
    text = module.text()
    after = verify(run(module))
    assert module.text() == text, "a pass must not change its input"
    assert count(after) <= count(module)
    assert run(after) is after, "a second run must change nothing"
    assert checks(after) == checks(module), "effects must stay"
    operands = [array((2, 2), DTYPES["i32"], seed + n) for n in range(2)]
    for predicate in (True, False):
        given = (np.array(predicate), *operands)
        for a, b in zip(evaluate(module, *given), evaluate(after, *given), strict=True):
            assert_close(a, b)


@settings(max_examples=30)
@given(programs())
def test_the_text_tells_all(module: Module):
    assert optimize(parse(module.text())).text() == optimize(module).text()


def test_nothing_to_do_is_nothing_done():
    module = parse((GOLDEN / "cse" / "effects.mlir").read_text().partition(MARK)[0])
    assert cse(module) is module


def test_nodes_of_several_results_are_merged():
    key, numbers = tensor(2, dtype="ui64"), tensor(3, dtype="ui64")
    given = Value(key)
    one, other = (apply(RngBitGenerator("PHILOX", (key, numbers)), given) for _ in range(2))
    region = Region((given,), [one, other], (*one.results, *other.results))
    after = cse(Module({"main": Function("main", region)})).function("main").body
    assert len(after.nodes) == 1 and after.results == (*one.results, *one.results)


def test_tables_follow_merged_values():
    module = parse((GOLDEN / "cse" / "equal_nodes.mlir").read_text().partition(MARK)[0])
    first, second, *_ = module.function("main").body.nodes
    told = {first.results[0]: "first", second.results[0]: "second"}
    after = cse(replace(module, tables={"notes": told}))
    assert after.tables["notes"] == {first.results[0]: "first"}


def test_failing_checks_are_kept():
    module = parse((GOLDEN / "drop_dead" / "effects.mlir").read_text().partition(MARK)[0])
    nan = np.array([1, 2], np.float32)
    evaluate(optimize(module), nan)
    main = module.function("main")
    wrong = apply(ExpectEq(), main.body.args[0], main.body.nodes[0].results[0])
    body = Region(main.body.args, [main.body.nodes[0], wrong], main.body.results)
    broken = module.with_functions({"main": replace(main, body=body)})
    with pytest.raises(WeftError, match="check failed"):
        evaluate(drop_dead(cse(broken)), nan)
