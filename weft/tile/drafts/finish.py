"""From a draft to a kernel: number factors, list operands, order steps, schedule loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from weft.ir.module import Value, tensor_of
from weft.kernels.digest import content_digest
from weft.kernels.group import Group
from weft.kernels.kernel import (
    Affine,
    Apply,
    Contract,
    Factor,
    Kernel,
    Load,
    Operand,
    Reduce,
    Shift,
    Step,
    Store,
)
from weft.target import Target
from weft.tile.drafts.draft import Draft, Terms
from weft.tile.drafts.index import At, Expr, factors_of, linear

ShapeOf = Callable[[Value], tuple[int, ...]]


def finished(draft: Draft, shape: ShapeOf, target: Target) -> Group:
    """The group of a draft."""
    inputs = tuple(draft.pending)
    outputs = tuple([value for value, _ in draft.outputs])
    numbering = _factors(draft)
    steps = _steps(draft, inputs, outputs, numbering, shape)
    operands = tuple(
        [Operand(tensor_of(v).dtype, shape(v)) for v in inputs]
        + [Operand(tensor_of(v).dtype, shape(v), output=True) for v in outputs]
    )
    stored = factors_of([e for _, n in draft.outputs for e in draft.at(n)])
    factors = tuple(
        [
            Factor(
                f"{'d' if f in draft.devices else 'i'}{n}",
                draft.sizes[f],
                "parallel" if f in stored else "reduction",
                f in draft.devices,
            )
            for f, n in numbering.items()
        ]
    )
    kernel = named(Kernel("", factors, operands, steps), target)
    # Drafts are built from their outputs backwards.
    return Group(tuple(reversed(draft.nodes)), kernel, inputs, outputs)


def _factors(draft: Draft) -> dict[int, int]:
    """The used factors, numbered: those of the first output, then the others."""
    used: dict[int, None] = dict.fromkeys(draft.root)
    for number in _reached(draft):
        key = draft.keys[number]
        if key is not None:
            exprs = (*key[1], *(expr for expr, _, _ in key[2]))
            used.update(dict.fromkeys(sorted(factors_of(exprs))))
    used.update(dict.fromkeys(draft.rows))
    # The order of the first output's dims: its stores are contiguous in the innermost loop.
    return {f: n for n, f in enumerate(f for f in used if f not in draft.later)}


def _reached(draft: Draft) -> list[int]:
    """The instances that outputs depend on, in reverse topological order."""
    order: dict[int, None] = {}
    todo = [number for _, number in draft.outputs]
    while todo:
        number = todo.pop()
        if number in order:
            continue
        order[number] = None
        definition, key = draft.definitions[number], draft.keys[number]
        if definition is not None:
            todo += reversed(definition.args)
        if key is not None:
            later = factors_of(key[1]) & draft.later.keys()
            todo += [draft.later[f][0] for f in sorted(later)]
    return list(order)


def _loops_alone(draft: Draft, expr: Expr) -> tuple[Expr, list[tuple[int, int]]]:
    """The loop part of an expression, and its dynamic part."""
    offset, terms = draft.fresh(expr)
    later = [(f, c) for f, c in terms if f in draft.later]
    return (offset, tuple([(f, c) for f, c in terms if f not in draft.later])), later


def _steps(
    draft: Draft,
    inputs: tuple[Value, ...],
    outputs: tuple[Value, ...],
    numbering: dict[int, int],
    shape: ShapeOf,
) -> tuple[Step, ...]:
    operands = {v: n for n, v in enumerate(inputs)}
    terms = _terms(draft, operands, numbering, shape)
    steps: list[Step] = []
    where: dict[int, int] = {}  # step number by instance

    def visit(number: int) -> int:
        found = where.get(number)
        if found is not None:
            return found
        definition = draft.definitions[number]
        if definition is None:
            key = draft.keys[number]
            assert key is not None, "an instance of a value"
            value, at, bounds = key
            place, later = _loops_alone(draft, linear(at, shape(value)))
            shifts = tuple(
                [Shift(visit(draft.later[f][0]), draft.later[f][1], stride) for f, stride in later]
            )
            step_at: Step = Load(
                operands[value],
                terms.affine(place),
                tensor_of(value).dtype,
                terms.guards(bounds),
                shifts,
            )
        else:
            numbers = tuple([visit(n) for n in definition.args])
            if definition.make is None:
                where[number] = numbers[0]
                return numbers[0]
            step_at = definition.make(numbers, terms)
        steps.append(step_at)
        where[number] = len(steps) - 1
        return len(steps) - 1

    for n, (value, number) in enumerate(draft.outputs):
        arg = visit(number)
        place = terms.place(value, draft.at(number))
        steps.append(Store(len(inputs) + n, place, arg))
    return tuple(steps)


def _terms(
    draft: Draft, operands: dict[Value, int], numbering: dict[int, int], shape: ShapeOf
) -> Terms:
    def affine(expr: Expr) -> Affine:
        offset, listed = draft.fresh(expr)
        strides = [0] * len(numbering)
        for f, coefficient in listed:
            strides[numbering[f]] = coefficient
        return Affine(tuple(strides), offset)

    def place(value: Value, at: At) -> Affine:
        return affine(linear(at, shape(value)))

    def factors(listed: Sequence[int]) -> tuple[int, ...]:
        return tuple([numbering[f] for f in draft.spelled(tuple(listed))])

    return Terms(affine, operands.__getitem__, place, factors)


# Names


def named(kernel: Kernel, target: Target) -> Kernel:
    """The kernel as scheduled by its target, with its name."""
    schedule = target.schedule(kernel)
    name = _name(kernel.steps, kernel.factors, kernel.operands, schedule)
    return replace(kernel, name=name, schedule=schedule)


@lru_cache(maxsize=4096)
def _name(steps: tuple[Step, ...], *parts: object) -> str:
    """A short description of the computation, and a digest that makes it unique."""
    ops = [s.op.name.rpartition(".")[2] for s in steps if isinstance(s, Apply)]
    kinds = [type(s).__name__.lower() for s in steps if isinstance(s, Reduce | Contract)]
    short = "_".join([*dict.fromkeys(kinds), *dict.fromkeys(ops)][:4]) or "copy"
    digest = content_digest((steps, *parts))
    return f"{short}_{digest}"
