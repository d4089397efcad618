"""Where a source can be changed so that a test should see it: the mutants of `tests/mutants.py`."""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the bytes of a file from `start` to `end` become `after`."""

    path: str  # below the root: weft/optimize/cse.py
    line: int
    start: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {self.before} -> {self.after or 'nothing'}"

    def applied(self, source: bytes) -> bytes:
        """The changed source."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    def diff(self, source: bytes) -> str:
        """The change as a diff."""
        old, new = source.decode().splitlines(), self.applied(source).decode().splitlines()
        lines = difflib.unified_diff(old, new, self.path, self.path, n=1, lineterm="")
        return "\n".join(f"    {line}" for line in lines)


def mutants(path: str, source: bytes) -> list[Mutant]:
    """Every change of a file that tests should see."""
    return list(_Sites(path, source).of(ast.parse(source)))


class _Sites:
    """The places of one file."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def of(self, node: ast.AST) -> Iterator[Mutant]:
        """The changes in a node and in all below it."""
        match node:
            case ast.BinOp(left=left, op=op, right=right):
                yield from self.swap(left, op, right)
            case ast.AugAssign(target=target, op=op, value=value):
                yield from self.swap(target, op, value)
            case ast.BoolOp(op=op, values=[first, second, *_]):
                yield from self.swap(first, op, second)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                yield from self.swap(left, op, right)
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                yield from self.without_sign(node)
            case ast.Constant(value=bool() | int() | float()):
                yield from self.constant(node)
        for child in seen_children(node):
            yield from self.of(child)

    def swap(self, left: ast.expr | ast.stmt, op: ast.AST, right: ast.expr) -> Iterator[Mutant]:
        before, after = SWAPS.get(type(op), ("", ""))
        begin, end = self.end(left), self.start(right)
        words = r"\s+".join(map(re.escape, before.split()))
        found = re.search(words.encode(), self.source[begin:end]) if before else None
        if found:
            yield self.made(begin + found.start(), begin + found.end(), after)

    def without_sign(self, node: ast.UnaryOp) -> Iterator[Mutant]:
        start = self.start(node)
        yield self.made(start, start + (3 if isinstance(node.op, ast.Not) else 1), "")

    def constant(self, node: ast.Constant) -> Iterator[Mutant]:
        value = node.value
        other = not value if isinstance(value, bool) else value + 1
        if isinstance(value, float) and abs(value) > 1:  # to which 1 is little, or nothing
            other = 0.0 if math.isinf(value) else value / 2
        yield self.made(self.start(node), self.end(node), repr(other))

    def made(self, start: int, end: int, after: str) -> Mutant:
        line = self.source.count(b"\n", 0, start) + 1
        return Mutant(self.path, line, start, end, self.source[start:end].decode(), after)

    def start(self, node: ast.AST) -> int:
        return self.starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]

    def end(self, node: ast.AST) -> int:
        return self.starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]


def seen_children(node: ast.AST) -> list[ast.AST]:
    """The parts of a node whose changes a test can see."""
    match node:
        case ast.JoinedStr() | ast.Raise():  # texts; their positions are unknown, too
            return []
        case ast.Assert(test=test):
            return [test]
        case ast.AnnAssign(annotation=annotation, value=value):
            is_alias = isinstance(annotation, ast.Name) and annotation.id == "TypeAlias"
            return [] if value is None or is_alias else [value]
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return [] if name == "__all__" or _is_union(value) else [value]
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse):
            return [*orelse]
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return [*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body]
        case ast.ClassDef():
            return [*node.body]
        case ast.Call(func=ast.Name(id="isinstance"), args=[value, _]):
            return [value]
        case ast.Call():  # zip(strict=True) is an assertion
            named = [k.value for k in node.keywords if k.arg != "strict"]
            return [node.func, *node.args, *named]
    return list(ast.iter_child_nodes(node))


def _is_union(node: ast.expr) -> bool:
    """Whether an expression is types with `|` between them, as far as can be seen."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitOr) and _is_union(node.left) and _is_union(node.right)
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript) or (
        isinstance(node, ast.Constant) and node.value is None
    )
