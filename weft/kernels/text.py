"""A kernel as text: its loops, its buffers, its steps, and how it is scheduled."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.op import Op
from weft.kernels.alone import Alone
from weft.kernels.attention import Attention
from weft.kernels.group import Launch
from weft.kernels.kernel import (
    Affine,
    Apply,
    Choose,
    Contract,
    Factor,
    Fill,
    Guard,
    Load,
    Operand,
    Pick,
    Position,
    Reduce,
    Schedule,
    Step,
    Store,
)


def kernel_text(kernel: Launch) -> str:
    """The contract of a kernel, a line for each thing."""
    if isinstance(kernel, Alone | Attention):
        told = _attention(kernel) if isinstance(kernel, Attention) else f"{op_text(kernel.op)}"
        lines = [f"kernel {kernel.name}: {told}"]
        return "\n".join([*lines, *map(_operand, range(len(kernel.operands)), kernel.operands)])
    names = [factor.name for factor in kernel.factors]
    lines = [f"kernel {kernel.name}{'' if kernel.excess_precision else ', rounded at every step'}"]
    lines += [_factor(factor) for factor in kernel.factors]
    lines += map(_operand, range(len(kernel.operands)), kernel.operands)
    lines += [_line(n, step, names) for n, step in enumerate(kernel.steps)]
    return "\n".join([*lines, _schedule(kernel.schedule, names)])


def _attention(kernel: Attention) -> str:
    """The sizes of attention, and who sees whom."""
    way = "forward" if kernel.gradients is None else "backward"
    window, options = kernel.window, "".join(f", {n}={v}" for n, v in kernel.options)
    low = "first" if window.left is None else _near("i", window.shift - window.left)
    high = "last" if window.right is None else _near("i", window.shift + window.right)
    return (
        f"{way} attention at {'x'.join(map(str, kernel.outer))} points, {kernel.queries} queries "
        f"x {kernel.depth} and {kernel.keys} keys x {kernel.value_depth}; query i sees keys "
        f"{low}..{high}{'' if kernel.mask is None else ' that the mask allows'}{options}"
    )


def _near(name: str, offset: int) -> str:
    return name if not offset else f"{name} {'-' if offset < 0 else '+'} {abs(offset)}"


def op_text(op: Op) -> str:
    """`compare(direction=GT)`: an op with what it says beside its operands."""
    said = [f"{n}={value}" for n in op.fields() if (value := getattr(op, n)) is not None]
    name = op.name.rpartition(".")[2]
    return f"{name}({', '.join(said)})" if said else name


def _factor(factor: Factor) -> str:
    roles = ", ".join(filter(None, (factor.role, "of devices" if factor.device else "")))
    return f"  factor {factor.name} = {factor.size}  {roles}"


def _operand(number: int, operand: Operand) -> str:
    shape = "x".join(map(str, (*operand.shape, operand.dtype)))
    return f"  {'output' if operand.output else 'input'} #{number}: {shape}"


def _schedule(schedule: Schedule, names: Sequence[str]) -> str:
    order = [names[n] for n in schedule.order]
    outer, inner = " ".join(order[: schedule.tasks]), " ".join(order[schedule.tasks :])
    options = "".join(f", {name}={value}" for name, value in schedule.options)
    return f"  schedule {schedule.kind}: tasks of {outer or 'nothing'}, then {inner}{options}"


def _line(number: int, step: Step, names: Sequence[str]) -> str:
    text = _step(step, names)
    return f"    {text}" if isinstance(step, Store) else f"    %{number}: {step.dtype} = {text}"


def _step(step: Step, names: Sequence[str]) -> str:
    match step:
        case Load(operand=operand, at=at, guards=guards, shifts=shifts):
            moved = "".join(
                f" + {s.stride}*%{s.index}{'' if s.clamped else '?'}(0..{s.limit})" for s in shifts
            )
            return f"load #{operand}[{_affine(at, names)}{moved}]{_guards(guards, names)}"
        case Fill(value=value):
            return f"fill {value}"
        case Position(at=at):
            return f"position {_affine(at, names)}"
        case Apply(op=op, args=args):
            return f"{op_text(op)} {_listed(args)}"
        case Choose(guards=guards, inside=inside, outside=outside):
            return f"choose %{inside} else %{outside}{_guards(guards, names)}"
        case Reduce(how=how, arg=arg, init=init, over=over):
            begin = "" if init is None else f" from %{init}"
            return f"reduce {how} %{arg}{begin} over {_over(over, names)}"
        case Pick(how=how, key=key, value=value, over=over):
            return f"pick {how} %{value} by %{key} over {_over(over, names)}"
        case Contract(lhs=lhs, rhs=rhs, over=over, held=held):
            return f"contract %{lhs}, %{rhs} over {_over(over, names)} in {held}"
        case Store(operand=operand, at=at, arg=arg, guards=guards):
            return f"store #{operand}[{_affine(at, names)}] %{arg}{_guards(guards, names)}"


def _affine(at: Affine, names: Sequence[str]) -> str:
    terms = [
        name if stride == 1 else f"{stride}*{name}"
        for name, stride in zip(names, at.strides, strict=True)
        if stride
    ]
    terms += [str(at.offset)] if at.offset or not terms else []
    return " + ".join(terms)


def _guards(guards: Sequence[Guard], names: Sequence[str]) -> str:
    told = [f"{g.low} <= {_affine(g.index, names)} < {g.high}" for g in guards]
    return f" where {' and '.join(told)}" if told else ""


def _listed(args: Sequence[int]) -> str:
    return ", ".join(f"%{arg}" for arg in args)


def _over(over: Sequence[int], names: Sequence[str]) -> str:
    return " ".join(names[n] for n in over)
