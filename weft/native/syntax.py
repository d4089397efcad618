"""The source of native functions: syntax trees, and the operators of the subset of Python."""

from __future__ import annotations

import ast
import functools
import linecache
import operator
import typing
from typing import Any

from weft.errors import WeftError
from weft.native.builder import FunctionBuilder, Typed, constant, llvm_type
from weft.native.memory import Items

_COMPARED = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
COMPARISONS: dict[type[ast.cmpop], str] = dict(
    zip(_COMPARED, "== != < <= > >=".split(), strict=True)
)
_COMPUTED = (
    *(ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr, ast.BitXor),
    *(ast.LShift, ast.RShift),
)
OPERATORS: dict[type[ast.operator], str] = dict(
    zip(_COMPUTED, "+ - * // % & | ^ << >>".split(), strict=True)
)
_FOLDED = "add sub mul floordiv mod and_ or_ xor lshift rshift".split()
FOLD = dict(zip(_COMPUTED, [getattr(operator, name) for name in _FOLDED], strict=True))
_PURE = (
    *(ast.Name, ast.Constant, ast.Compare, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Load),
    *(ast.operator, ast.unaryop, ast.cmpop, ast.boolop),
)
# The number of operands before the memory orders, the record included.
ATOMIC = {"load": 1, "store": 2, "swap": 2, "add": 2, "replace": 3}
BUILTIN = {"min": min, "max": max, "int": int, "bool": bool}


@functools.lru_cache(maxsize=32)
def _functions(path: str) -> dict[int, ast.FunctionDef]:
    """The functions of a file, by the line of their first decorator."""
    # Parsed once for all functions of a file: `inspect.getsource` tokenizes it again for each.
    tree = ast.parse("".join(linecache.getlines(path)))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {min([n.lineno, *[d.lineno for d in n.decorator_list]]): n for n in functions}


def tree_of(python: Any) -> tuple[ast.FunctionDef, str]:
    """The syntax tree of a function, and its file."""
    code = python.__code__
    tree = _functions(code.co_filename).get(code.co_firstlineno)
    if tree is None:
        raise WeftError(
            f"{python.__module__} has no source file, from which native code is lowered",
            help="install weft with its .py files",
        )
    return tree, code.co_filename


def closure_of(python: Any) -> dict[str, Any]:
    """The free variables of a nested function, by name."""
    cells = python.__closure__ or ()
    return dict(zip(python.__code__.co_freevars, [c.cell_contents for c in cells], strict=True))


def apply_operation(b: FunctionBuilder, name: str, operands: list[Typed]) -> Typed:
    """An operation on values: an instruction, or an LLVM intrinsic."""
    volatile = Typed(bool, "false")
    match name, operands:
        case "copy", [to, source, nbytes]:
            return b.intrinsic(None, "llvm.memcpy.p0.p0.i64", to, source, nbytes, volatile)
        case "clear", [at, nbytes]:
            zero = constant(0, typing.Annotated[int, 8])
            return b.intrinsic(None, "llvm.memset.p0.i64", at, zero, nbytes, volatile)
        case (("min" | "max"), [left, right]):
            kind = right.type if left.literal else left.type
            left, right = b.cast(kind, left), b.cast(kind, right)
            return b.intrinsic(kind, f"llvm.s{name}.{llvm_type(kind)}", left, right)
        case "to_i32", [one]:
            return b.cast(typing.Annotated[int, 32], one)
        case (("to_int" | "address"), [one]):
            return b.cast(int, one)
        case "wrapped", [one]:  # machine arithmetic wraps by itself; only Python's does not
            return one
        case "upper_bits", [one, shift]:
            return b.let(int, f"lshr {one}, {shift.text}")
        case _:
            raise AssertionError(f"{name!r} is no operation of {len(operands)} values")


def stores(node: ast.Name) -> bool:
    """Whether a name is assigned."""
    return isinstance(node.ctx, ast.Store)


def loaded(target: ast.expr) -> ast.expr:
    """An assignment target as an expression."""
    match target:
        case ast.Name(id=name):
            return ast.Name(name, ast.Load())
        case ast.Attribute(value=owner, attr=name):
            return ast.Attribute(owner, name, ast.Load())
        case ast.Subscript(value=owner, slice=index):
            return ast.Subscript(owner, index, ast.Load())
    return target


def is_pure(node: ast.expr) -> bool:
    """Whether an expression neither loads nor calls, so that speculating it is safe."""
    return all(isinstance(one, _PURE) for one in ast.walk(node))


def item_type(kind: Any) -> Any:
    """The type of an array's elements."""
    assert typing.get_origin(kind) is Items, f"{kind} is no array"
    return typing.get_args(kind)[0]
