"""A call: commands that run on the stacks of two tuples, the given and the made ones.

A `StacksCall` says how. It is followed by a `StackPlan` for each stack, the given ones first, and
each of these by the addresses of the operands that the stack is.
"""

from __future__ import annotations

from weft.array.references import StackObject
from weft.emit.llvm.pool.repeat import RunFunction
from weft.native.cpython import PyTuple
from weft.native.function import native
from weft.native.memory import Items, Member, Pointer, Struct, address, i32

NO_MEMORY, UNFIT = 1, 2  # what comes of a call; 0: all went well


class StacksCall(Struct):
    """A call descriptor: the commands and the number of stacks; a `StackPlan` of each follows."""

    run: Member[RunFunction]
    commands: Member[Pointer]
    type: Member[Pointer]  # of stacks
    given: Member[int]  # how many stacks
    made: Member[int]


class StackPlan(Struct):
    """The kind that a stack must have, and the number of operands that point to it."""

    kind: Member[Pointer]
    operands: Member[int]


@native
def call(pool: Pointer, plan: StacksCall, given: PyTuple, made: PyTuple) -> i32:
    """Run commands; 0, or 1 if there was no memory, or 2 if a stack does not fit."""
    stacks = place(given, plan.given, plan.type, StackPlan(plan.nth(1)))
    if not stacks or not place(made, plan.made, plan.type, stacks):
        return UNFIT
    return plan.run(pool, plan.commands)


@native
def place(held: PyTuple, count: int, type: Pointer, plan: StackPlan) -> StackPlan:
    """Write where the elements of stacks are; what follows their plans, or null if one is unfit."""
    for n in range(count):
        stack = StackObject(held.items[n])
        if stack.type != type or stack.kind != plan.kind:
            return StackPlan(0)
        elements = address(stack.data.data)
        operands = Items[Items[int]](plan.nth(1))
        for k in range(plan.operands):
            operands[k][0] = elements
        plan = StackPlan(operands.after(plan.operands))
    return plan
