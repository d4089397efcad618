"""Which operands of a kernel may be written over: those whose elements nobody reads later."""

from __future__ import annotations

from typing import Any

from weft.ir.types import F32, F64
from weft.kernels.in_place import overwritten
from weft.kernels.kernel import (
    Affine,
    Apply,
    Contract,
    Factor,
    Guard,
    Kernel,
    Load,
    Operand,
    Reduce,
    Schedule,
    Store,
)
from weft.ops.elementwise.pointwise import Add, Multiply

HERE = Affine((4, 1))
ROW = Affine((1, 0))
SQUARE = Operand(F32, (4, 4))
OUT = Operand(F32, (4, 4), output=True)


def kernel(operands: list[Operand], *steps: Any, tasks: int = 1) -> Kernel:
    factors = (Factor("i", 4), Factor("j", 4))
    return Kernel("k", factors, tuple(operands), steps, Schedule("any", (0, 1), tasks))


def load(operand: int, at: Affine = HERE, **more: Any) -> Load:
    return Load(operand, at, F32, **more)


def test_element_by_element():
    both = kernel(
        [SQUARE, SQUARE, OUT], load(0), load(1), Apply(Add(), (0, 1), F32), Store(2, HERE, 2)
    )
    assert overwritten(both) == ((0, 2), (1, 2))


def test_not_from_another_place():
    turned = kernel([SQUARE, OUT], load(0, Affine((1, 4))), Store(1, HERE, 0))
    shifted = kernel(
        [SQUARE, OUT], load(0), load(0, Affine((4, 1), 1)), Apply(Add(), (0, 1), F32),
        Store(1, HERE, 2),
    )  # fmt: skip
    guard = Guard(Affine((1, 0)), 0, 3)
    part = kernel([SQUARE, OUT], load(0, guards=(guard,)), Store(1, HERE, 0))
    assert overwritten(turned) == overwritten(shifted) == overwritten(part) == ()


def test_not_over_what_is_read_again_at_other_points():
    line, made = Operand(F32, (4,)), Operand(F32, (4,), output=True)
    steps = (load(0, ROW), load(1), Apply(Add(), (0, 1), F32), Apply(Add(), (0, 0), F32))
    both = kernel([line, SQUARE, OUT, made], *steps, Store(2, HERE, 2), Store(3, ROW, 3))
    assert overwritten(both) == ((1, 2),)


def test_not_over_elements_of_another_size():
    wide = kernel([Operand(F64, (4, 4)), OUT], Load(0, HERE, F64), Store(1, HERE, 0))
    row = kernel([Operand(F32, (4,)), OUT], load(0, ROW), Store(1, HERE, 0))
    assert overwritten(wide) == overwritten(row) == ()


def test_not_over_what_another_result_is_still_to_be_computed_from():
    """The first result does not depend on the second operand, which is read for the other one."""
    two = kernel(
        [SQUARE, SQUARE, OUT, OUT], load(0), load(1), Apply(Add(), (0, 1), F32),
        Store(2, HERE, 0), Store(3, HERE, 2),
    )  # fmt: skip
    assert overwritten(two) == ((0, 2), (0, 3), (1, 3))


def softmax(*more: Any, outs: int = 1, tasks: int = 1) -> Kernel:
    operands = [SQUARE, *[OUT] * outs]
    return kernel(
        operands, load(0), Reduce("add", 0, None, (1,), F32), Apply(Multiply(), (0, 1), F32),
        Store(1, HERE, 2), *more, tasks=tasks,
    )  # fmt: skip


def test_rows_are_read_to_the_end_before_they_are_written():
    assert overwritten(softmax()) == ((0, 1),)
    assert overwritten(softmax(tasks=0)) == overwritten(softmax(tasks=2)) == ()
    assert overwritten(softmax(Store(2, HERE, 0), outs=2)) == ()


def test_the_end_of_a_product_is_written_over_what_it_adds():
    factors = (Factor("i", 4), Factor("j", 4), Factor("k", 4, "reduction"))
    left, right, here = Affine((4, 0, 1)), Affine((0, 1, 4)), Affine((4, 1, 0))
    steps = (
        load(0, left),
        load(1, right),
        Contract(0, 1, (2,), F32, F32),
        load(2, here),
        Apply(Add(), (2, 3), F32),
        Store(3, here, 4),
    )
    operands = (SQUARE, SQUARE, SQUARE, OUT)
    made = Kernel("k", factors, operands, steps, Schedule("any", (0, 1, 2), 2))
    assert overwritten(made) == ((2, 3),)


def test_what_follows_a_reduced_product_is_not_written_over_what_it_reads():
    factors = (Factor("i", 4), Factor("j", 4), Factor("k", 4, "reduction"))
    left, right, here = Affine((4, 0, 1)), Affine((0, 1, 4)), Affine((4, 1, 0))
    line, room = Affine((0, 1, 0)), Operand(F32, (4,))
    steps = (
        load(0, left),
        load(1, right),
        Contract(0, 1, (2,), F32, F32),
        load(2, here),  # of the size of the product
        load(3, line),  # added to every row of it
        Apply(Add(), (2, 3), F32),
        Apply(Add(), (5, 4), F32),
        Store(5, here, 6),
        Reduce("add", 6, None, (0,), F32),
        load(4, line),  # multiplied with the sum of the rows
        Apply(Multiply(), (8, 9), F32),
        Store(6, line, 10),
    )
    operands = (SQUARE, SQUARE, SQUARE, room, room, OUT, Operand(F32, (4,), output=True))
    made = Kernel("k", factors, operands, steps, Schedule("any", (0, 1, 2), 2))
    assert overwritten(made) == ((2, 5), (3, 6))
