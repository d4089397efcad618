"""A call: commands that run on the stacks of two tuples, inputs and outputs.

A `StacksCall` says how. It is followed by a `StackPlan` for each stack, the inputs first, and
each of these by the sizes of numpy arrays that will do in its place, and by the addresses of the
operands that the stack is.
"""

from __future__ import annotations

from weft.array.stacked import Stacked
from weft.emit.llvm.pool.repeat import RunFunction
from weft.native.cpython import NumpyArray, PyObject, PyTuple, slot_offsets
from weft.native.function import native, to_int
from weft.native.memory import Items, Member, Pointer, Struct, address, i32

NO_MEMORY, UNFIT = 1, 2  # results of a call; 0 is success
_DENSE = 0x101  # ndarray flags: C-contiguous and aligned


class StackObject(PyObject, offsets=slot_offsets(Stacked)):
    """A stack: its kind, and the array that holds its elements.

    Looking up the addresses of arguments in Python would take most of a call that has many: native
    code reads them from the objects, if this CPython has the expected layout.
    """

    kind: Member[Pointer]
    data: Member[NumpyArray]


class StacksCall(Struct):
    """A call descriptor: the commands and the number of stacks; a `StackPlan` of each follows."""

    run: Member[RunFunction]
    commands: Member[Pointer]
    type: Member[Pointer]  # of stacks
    arrays: Member[Pointer]  # the type of numpy's arrays
    inputs: Member[int]  # how many stacks
    outputs: Member[int]


class StackPlan(Struct):
    """The kind that a stack must have, and the number of operands that point to it."""

    kind: Member[Pointer]
    dtype: Member[Pointer]  # of numpy arrays that will do, too; null if none will
    rank: Member[int]  # of these
    operands: Member[int]


@native
def call(pool: Pointer, plan: StacksCall, inputs: PyTuple, outputs: PyTuple) -> i32:
    """Run commands; 0, or 1 if there was no memory, or 2 if a stack does not fit."""
    # All addresses are written before anything runs: where a stack is unfit nothing has happened
    # yet, and Python may convert it and call again.
    stacks = place(inputs, plan.inputs, plan, StackPlan(plan.nth(1)))
    if not stacks or not place(outputs, plan.outputs, plan, stacks):
        return UNFIT
    return plan.run(pool, plan.commands)


@native
def place(held: PyTuple, count: int, types: StacksCall, plan: StackPlan) -> StackPlan:
    """Write the addresses of stacks; returns the plan after theirs, or null if one is unfit."""
    for n in range(count):
        item = held.items[n]
        sizes = Items[int](plan.nth(1))
        operands = Items[Items[int]](sizes.after(plan.rank))
        # Only a cast so far: it is an ndarray in the second case alone, and a stack's data in the
        # first.
        array = NumpyArray(item)
        if item.type == types.type:
            stack = StackObject(item)
            # Kinds are interned (`weft.array.stacked`), so equal ones are one object. A miss is
            # safe: Python takes the slow way and explains.
            if stack.kind != plan.kind:
                return StackPlan(0)
            array = stack.data
        elif item.type != types.arrays or not fits(array, plan, sizes):
            return StackPlan(0)
        elements = address(array.data)
        for k in range(plan.operands):
            operands[k][0] = elements
        plan = StackPlan(operands.after(plan.operands))
    return plan


@native
def fits(array: NumpyArray, plan: StackPlan, sizes: Items[int]) -> bool:
    """Whether a numpy array is dense, and has the type and the sizes of a plan."""
    if array.dtype != plan.dtype or to_int(array.rank) != plan.rank:
        return False
    # Dtypes are compared by address: numpy has one object for each built-in type of native byte
    # order. Others (a swapped or a structured type) are unfit, and take the slow way.
    if array.flags & _DENSE != _DENSE:
        return False
    n = 0
    while n < plan.rank and array.sizes[n] == sizes[n]:
        n += 1
    return n == plan.rank
