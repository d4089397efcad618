"""What must hold of every op, checked on its examples with no code per op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ops import honesty
from tests.ops.catalogue import CHECKED, EXAMPLES, EXEMPT
from tests.ops.example import Example
from tests.ops.known import ASK_XLA, REFERENCES, RULES, TOUCHES_LESS, UNKNOWN_TO_ORACLES, XLA_TYPES
from tests.ops.oracle_program import interpreter_text, joined
from tests.ops.program import OnDevices, Program, run
from tests.oracles import interpreter, shardy, xla
from tests.oracles.process import Crashed
from tests.tolerance import assert_close
from weft.capture import parse
from weft.cli.commands.installation.ops import work
from weft.errors import WeftError
from weft.ir.module import Node
from weft.ir.op import Op, infer, rule
from weft.ir.types import DTYPES, F32, TOKEN, Array, Symbol, TensorType, TupleType, Type, Types
from weft.ir.verify import verify
from weft.ir.work import moved
from weft.ops import OPS


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_has_examples(op: type[Op]):
    assert op in EXAMPLES or op.name in EXEMPT, (
        f"{op.name} has no examples: add a strategy for {op.__name__} to EXAMPLES in "
        f"tests/ops/examples/{op.__module__.rpartition('.')[2]}.py"
    )


# The rule says what the reference does


def check_honest(sample: Example) -> None:
    """The pieces that the rule makes, put together, are the whole."""
    if isinstance(sample, Program):
        return  # its operands are made inside the program
    node = sample.node()
    found = honesty.lies(sample, rule(node.op, node.operand_types, node.bodies))
    assert not found, "\n".join(found)


# The rule is Shardy's


def check_rule(sample: Example) -> None:
    """Shardy's rule for the same op, where it has one, reads the same."""
    module = sample.module()
    node = sample.node()
    if node.op.composite:
        return  # Shardy sees a composite, of which it knows nothing
    try:
        answers = shardy.rules(module.text())
    except Crashed:
        return  # the oracle has no answer
    named = [found for name, found in answers if name == node.op.name]
    assert named, f"Shardy sees no {node.op.name}"
    theirs = named[0]
    ours = str(rule(node.op, node.operand_types, node.bodies)).replace(" {}", "")
    if theirs is not None and not _on_purpose(RULES, node.op, theirs):
        assert ours == theirs.removeprefix("#sdy.op_sharding_rule<").removesuffix(">")


def _on_purpose(table: dict[str, Any], op: Op, *arguments: Any) -> bool:
    """Whether a known difference, listed with its reason, covers this op."""
    known = table.get(op.name)
    return known is not None and (known.where is None or known.where(op, *arguments))


# The text


def check_text(sample: Example) -> None:
    """MLIR accepts the text, and reading it gives the same module."""
    module = verify(sample.module())
    text = module.text()
    again = parse(text)
    assert again.text() == text
    assert parse(again.text(locations=True)).text() == text
    if not isinstance(sample, Program):
        assert [n.op for n in again.nodes()] == [n.op for n in module.nodes()]


# Refusals


def wrong_types(types: Types) -> list[Types]:
    """Operand types with one thing changed: their number, an element type, a size, a rank."""
    found: list[Types] = [(), types[:-1], (*types, TensorType((), F32)), (*types, *types)]
    for place, type in enumerate(types):
        changed: list[Type] = [TOKEN, TupleType((type,)), TensorType((), F32)]
        if isinstance(type, TensorType):
            names = ("i1", "i32", "ui8", "f32", "bf16", "complex<f32>", "f8E4M3FN")
            changed += [type.with_dtype(DTYPES[n]) for n in names]
            changed += [type.with_shape((*type.shape, 3)), type.with_shape(type.shape[:-1])]
            changed += [type.with_shape((*type.shape[:-1], n)) for n in (0, 7, Symbol(5))]
        found += [(*types[:place], other, *types[place + 1 :]) for other in changed]
    return found


def wrong_fields(op: Op) -> list[dict[str, object]]:
    """Fields with numbers that mean nothing, and lists of another length."""
    found: list[dict[str, object]] = []
    for name in op.fields():
        value = getattr(op, name)
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, int):
            found += [{name: n} for n in (-1, 0, 7, 2**40)]
        elif isinstance(value, tuple) and all(isinstance(v, int) for v in value):
            longer = [(*value, n) for n in (-1, 0, 9)]
            found += [{name: v} for v in ((), value[:-1], value[::-1], *longer)]
        elif isinstance(value, TensorType):
            others = (value.with_shape((*value.shape, 2)), value.with_shape(value.shape[1:]))
            found += [{name: t} for t in others]
    return found


def accepts(op: Op, types: Types, bodies: Any) -> bool:
    """Whether an op takes operands of these types; whatever else is raised is a bug."""
    try:
        made = infer(op, types, bodies)
    except WeftError as error:
        assert error.message and error.help
        return False
    assert all(isinstance(t, Type) for t in made), f"{op.name} infers {made}"
    rule(op, types, bodies)
    return True


def check_refusals(sample: Example) -> None:
    """Whatever does not fit is refused, and never ends in another exception."""
    node = sample.node()
    assert accepts(node.op, node.operand_types, node.bodies)
    for types in wrong_types(node.operand_types):
        accepts(node.op, types, node.bodies)
    for changes in wrong_fields(node.op):
        try:
            changed = node.op.replace(**changes)
        except WeftError:
            continue
        accepts(changed, node.operand_types, node.bodies)


# The reference


def check_reference(sample: Example) -> None:
    """The reference gives arrays of the inferred types, and what an oracle gives."""
    ours = run(sample)
    node = sample.node()
    if not isinstance(sample, Program):
        offset = 1 if isinstance(sample, OnDevices) else 0
        for type, array in zip(node.types, ours, strict=True):
            if isinstance(type, TensorType):
                assert array.dtype == type.dtype.numpy and array.shape[offset:] == type.shape
    oracle = oracle_of(node)
    text = interpreter_text(sample)
    if text is None or oracle is None or _on_purpose(REFERENCES, node.op, sample):
        return
    try:
        theirs = oracle(text)
    except (Crashed, ValueError):
        return  # the oracle does not know these types
    length = max([1, *(t.size for t in node.operand_types if isinstance(t, TensorType))])
    least = 1.0 if oracle is xla.evaluated else 0.0  # its functions are approximations
    for number, (a, b) in enumerate(zip(ours, joined(theirs, ours), strict=True)):
        if a is not None:
            assert_close(a, b, length, f"{node.op!r}: result {number}", least)


def oracle_of(node: Node) -> Callable[[str], list[Array]] | None:
    """Who knows the op: StableHLO's interpreter, or XLA; nobody for annotations and checks."""
    name = node.op.name
    dialect = name.partition(".")[0]
    if name in UNKNOWN_TO_ORACLES or dialect in ("sdy", "check"):
        return None
    if dialect != "chlo" and name not in ASK_XLA:
        return interpreter.evaluated
    tensors = [t for t in (*node.operand_types, *node.types) if isinstance(t, TensorType)]
    return xla.evaluated if all(t.dtype.name in XLA_TYPES for t in tensors) else None


# The work


def check_work(sample: Example) -> None:
    """Counts are whole numbers, and what is computed is written."""
    node = sample.node()
    counted = work(node)
    for count in (counted.flops, counted.transcendentals, counted.bytes, counted.sent):
        assert type(count) is int and count >= 0
    name = node.op.name
    if name not in TOUCHES_LESS and not node.op.control and not name.startswith("sdy."):
        assert counted.bytes >= moved(*node.types), f"{counted} of {node!r}"


# All of this, for every op

CHECKS = {
    "rule_is_honest": check_honest,
    "rule_is_shardys": check_rule,
    "text_is_read_back": check_text,
    "wrong_operands_are_refused": check_refusals,
    "reference_is_right": check_reference,
    "work_is_counted": check_work,
}
every_op = pytest.mark.parametrize("op", CHECKED, ids=lambda op: op.name)
every_check = pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)


@every_op
@every_check
@settings(max_examples=8)
@given(st.data())
def test_op(op: type[Op], check: Callable[[Example], None], data: st.DataObject):
    check(data.draw(EXAMPLES[op]))


@pytest.mark.long
@every_op
@every_check
@settings(max_examples=300, derandomize=False, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_op_long(op: type[Op], check: Callable[[Example], None], data: st.DataObject):
    check(data.draw(EXAMPLES[op]))
