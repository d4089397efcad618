"""Lowering of native functions: from syntax trees to LLVM text."""

from __future__ import annotations

import ast
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, Never

from weft.native.builder import FunctionBuilder, NativeModule, Typed, constant, llvm_type
from weft.native.function import OPERATIONS, NativeFunction
from weft.native.memory import Items, Member, Pointer, Struct, bits, resolve, symbol
from weft.native.syntax import (
    ATOMIC,
    BUILTIN,
    COMPARISONS,
    FOLD,
    OPERATORS,
    apply_operation,
    closure_of,
    is_pure,
    item_type,
    loaded,
    stores,
    tree_of,
)


def lower(
    module: NativeModule,
    exported: Collection[NativeFunction[Any, Any]],
    constants: Mapping[str, int] | None = None,
) -> None:
    """Add functions and their callees to a module.

    `constants` override module constants by name, for a target.
    """
    # Breadth first in the order of calls, so that the text is the same in every process.
    waiting, reachable = [*exported], {*exported}
    while waiting:
        function = waiting.pop(0)
        lowered = _Lowered(module, function, constants or {}, function in exported)
        lowered.run()
        fresh = [other for other in lowered.called if other not in reachable]
        reachable.update(fresh)
        waiting += fresh


class _Lowered:
    """The lowering of one function."""

    def __init__(
        self,
        module: NativeModule,
        function: NativeFunction[Any, Any],
        constants: Mapping[str, int],
        exported: bool,
    ) -> None:
        self.tree, self.file = tree_of(function.source)
        self.names = closure_of(function.source)
        self.globals: dict[str, Any] = function.source.__globals__
        self.constants, self.module = constants, module
        parameters, result = function.signature
        labels = [one.arg for one in self.tree.args.args]
        self.params = [*zip(labels, parameters, strict=True)]
        self.b = FunctionBuilder(
            module,
            function.name,
            self.params,
            result,
            internal=not exported,
            attribute=function.attribute,
            doc=function.__doc__ or "",
        )
        self.variables: dict[str, tuple[Any, Typed]] = {}
        self.values: dict[str, Typed] = {}  # parameters that are never assigned
        self.loops: list[tuple[str, str]] = []  # labels of `continue` and `break`
        self.called: dict[NativeFunction[Any, Any], None] = {}
        self.node: ast.AST = self.tree

    def run(self) -> None:
        """Write the function."""
        # Parameters that are never assigned stay SSA values; only the others need a stack slot.
        stored = {n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and stores(n)}
        try:
            for label, kind in self.params:
                value = Typed(kind, f"%{label}")
                if label in stored:
                    self.assign(label, value, kind)
                else:
                    self.values[label] = value
            body = self.tree.body
            self.block(body[1:] if ast.get_docstring(self.tree) else body)
            self.b.finish()
        except AssertionError as error:
            if not getattr(error, "placed", False):
                self.refuse(str(error))
            raise

    def refuse(self, problem: str) -> Never:
        """Raise an error with the source line."""
        # An assertion, not a WeftError: the source is Weft's own. `run` must not place it again.
        where = f"{self.file}:{getattr(self.node, 'lineno', 0)}"
        error = AssertionError(f"{where}: {self.tree.name}: {problem}")
        error.placed = True  # type: ignore[attr-defined]
        raise error

    # Statements

    def block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            # Behind a return: Python would not run it either, and LLVM has no block to put it into.
            if not self.b.is_open:
                return
            self.node = statement
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Return(value=None):
                self.b.ret(None)
            case ast.Return(value=value):
                assert value is not None
                self.b.ret(self.value(value, self.b.result))
            case ast.Assign(targets=[target], value=value):
                self.store(target, value)
            case ast.AnnAssign(
                target=ast.Name(id=name), annotation=annotation, value=ast.expr() as value
            ):
                kind = resolve(ast.unparse(annotation), {**self.globals, **self.names})
                self.assign(name, self.value(value, kind), kind)
            case ast.AugAssign(target=target, op=op, value=value):  # `x op= y` as `x = x op y`
                place = ast.copy_location(loaded(target), node)
                self.store(target, ast.copy_location(ast.BinOp(place, op, value), node))
            case ast.If():
                self.when(node)
            case ast.While():
                self.loop(node)
            case ast.For():
                self.count(node)
            case ast.Break():
                self.b.jump(self.loops[-1][1])
            case ast.Continue():
                self.b.jump(self.loops[-1][0])
            case ast.Expr(value=value):
                self.value(value)
            case ast.Pass():
                pass
            case _:
                self.refuse(f"{type(node).__name__} is not of the subset")

    def store(self, target: ast.expr, value: ast.expr) -> None:
        match target:
            case ast.Name(id=name):
                known = self.variables.get(name)
                self.assign(name, self.value(value, known[0] if known else None))
            case ast.Attribute(value=owner, attr=name):
                record = self.value(owner)
                field = record.type.FIELDS[name]
                self.b.set(record, field, self.value(value, field.type))
            case ast.Subscript(value=owner, slice=index):
                array = self.value(owner)
                item = item_type(array.type)
                element = self.value(value, item)
                self.b.store(item, element, self.b.at(array, self.value(index), item))
            case _:
                self.refuse("it can be assigned to names, fields and elements")

    def assign(self, name: str, value: Typed, kind: Any = None) -> None:
        if name not in self.variables:
            kind = value.type if kind is None else kind
            assert llvm_type(kind) != "void", f"{name} has no value"
            self.variables[name] = kind, self.b.variable(kind)
        kind, place = self.variables[name]
        self.b.put(kind, value, place)

    def when(self, node: ast.If) -> None:
        # Folded here, not by LLVM: the other branch may call what this target's C library does not
        # have.
        known = self.constant(node.test)
        if known is not None:
            self.block(node.body if known else node.orelse)
            return
        yes, end = self.b.label("yes"), self.b.label("end")
        no = self.b.label("no") if node.orelse else end
        self.condition(node.test, yes, no)
        self.b.begin(yes)
        self.block(node.body)
        self.b.jump(end)
        if node.orelse:
            self.b.begin(no)
            self.block(node.orelse)
            self.b.jump(end)
        self.b.begin(end)

    def loop(self, node: ast.While) -> None:
        assert not node.orelse, "a loop has no else"
        head, body, end = (self.b.label(hint) for hint in ("head", "body", "end"))
        self.b.begin(head)
        # `while True:` has no test, so that what follows it is unreachable unless there is a break.
        if self.constant(node.test) is None:
            self.condition(node.test, body, end)
            self.b.begin(body)
        self.inside(node.body, head, end)
        self.b.jump(head)
        self.b.begin(end)

    def count(self, node: ast.For) -> None:
        """A loop over a range."""
        match node.iter:
            case ast.Call(func=ast.Name(id="range"), args=[stop]):
                start: Typed = constant(0)
            case ast.Call(func=ast.Name(id="range"), args=[first, stop]):
                start = self.value(first)
            case _:
                self.refuse("a loop is over range(stop) or range(start, stop)")
        assert isinstance(node.target, ast.Name) and not node.orelse, "a loop has one name"
        b, last = self.b, self.value(stop)  # evaluated once, as in Python
        head, body, on, end = (b.label(hint) for hint in ("head", "body", "next", "end"))
        # A counter of its own: the body may assign to the loop's name, as in Python.
        index = b.variable(int)
        b.put(int, start, index)
        b.begin(head)
        now = b.take(int, index)
        b.branch(b.compare("<", now, last), body, end)
        b.begin(body)
        self.assign(node.target.id, now, int)
        self.inside(node.body, on, end)
        b.begin(on)
        b.put(int, b.arithmetic("+", b.take(int, index), constant(1)), index)
        b.jump(head)
        b.begin(end)

    def inside(self, body: list[ast.stmt], on: str, end: str) -> None:
        self.loops.append((on, end))
        self.block(body)
        self.loops.pop()

    def condition(self, node: ast.expr, yes: str, no: str) -> None:
        """Branch on a condition, with short-circuit evaluation."""
        match node:
            # A later operand may load through a pointer that the earlier one tests for null.
            case ast.BoolOp(op=op, values=values) if not all(map(is_pure, values[1:])):
                for value in values[:-1]:
                    on = self.b.label("and")
                    self.condition(value, *((on, no) if isinstance(op, ast.And) else (yes, on)))
                    self.b.begin(on)
                self.condition(values[-1], yes, no)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.condition(operand, no, yes)
            case _:
                self.b.branch(self.b.truth(self.value(node)), yes, no)

    # Expressions

    def constant(self, node: ast.expr) -> Any:
        """The compile-time constant of an expression, a class or field among them; or None."""
        match node:
            case ast.Constant(value=int() | bytes() as value):
                return value
            case ast.Name(id=name) if name not in self.variables and name not in self.values:
                if name in self.constants:  # the target's own number, such as that of a clock
                    return self.constants[name]
                return self.names.get(name, self.globals.get(name, BUILTIN.get(name)))
            case ast.Attribute(value=owner, attr=name):
                held = self.constant(owner)
                is_class = isinstance(held, type) and issubclass(held, Struct)
                return getattr(held, name, None) if is_class or isinstance(held, Member) else None
            case ast.Subscript(value=owner, slice=index) if self.constant(owner) is Items:
                return Items[self.constant(index)]  # type: ignore[misc]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                held = self.constant(operand)
                return -held if isinstance(held, int) else None
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                held = self.constant(operand)
                return not held if isinstance(held, int) else None
            case ast.BinOp(left=left, op=op, right=right):
                # In Python's unbounded integers; `builder.constant` wraps the result.
                pair = self.constant(left), self.constant(right)
                if isinstance(pair[0], int) and isinstance(pair[1], int):
                    return FOLD[type(op)](*pair)
        return None

    def value(self, node: ast.expr, kind: Any = None) -> Typed:
        """The value of an expression; literals take the width of the expected type."""
        known = self.constant(node)
        if known is not None:
            return self.constant_operand(known, kind)
        match node:
            case ast.Name(id=name):
                if name in self.values:
                    return self.values[name]
                if name in self.variables:
                    held, place = self.variables[name]
                    return self.b.take(held, place)
                self.refuse(f"{name} is not known")
            case ast.Attribute(value=owner, attr=name):
                record = self.value(owner)
                fields = getattr(record.type, "FIELDS", {})
                assert name in fields, f"{record.type} has no field {name}"
                return self.b.get(record, fields[name])
            case ast.Subscript(value=owner, slice=index):
                array = self.value(owner)
                item = item_type(array.type)
                return self.b.load(item, self.b.at(array, self.value(index), item))
            case ast.BinOp(left=left, op=op, right=right):
                return self.b.arithmetic(OPERATORS[type(op)], self.value(left), self.value(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.b.compare(COMPARISONS[type(op)], self.value(left), self.value(right))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                held = self.value(operand)
                zero = constant(0, held.type) if bits(held.type) else Typed(held.type, "null")
                return self.b.compare("==", held, zero)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self.b.arithmetic("-", constant(0), self.value(operand))
            case ast.BoolOp():
                return self.both(node)
            case ast.IfExp(test=test, body=yes, orelse=no):
                return self.either(test, yes, no)
            case ast.Call(func=func, args=args):
                return self.call(func, args)
            case _:
                self.refuse(f"{ast.unparse(node)} is not of the subset")

    def constant_operand(self, held: Any, kind: Any) -> Typed:
        """The operand of a compile-time constant."""
        match held:
            case bool():  # before int, of which it is a subclass
                return constant(held, bool)
            case int():
                return constant(held, kind if bits(kind) > 1 else int)
            case bytes():
                return self.module.string(held)
            case NativeFunction():
                self.called[held] = None
                parameters, result = held.signature
                return Typed(Callable[[*parameters], result], f"@{held.name}")
            case Struct():
                return Typed(type(held), f"@{symbol(held)}")
            case _:
                self.refuse(f"{held} is no value")

    def both(self, node: ast.BoolOp) -> Typed:
        """`and`, `or`: bitwise where the operands are pure, else by branches."""
        is_and = isinstance(node.op, ast.And)
        if all(map(is_pure, node.values[1:])):
            truth = self.b.truth(self.value(node.values[0]))
            for other in node.values[1:]:
                held = self.b.truth(self.value(other))
                truth = self.b.arithmetic("&" if is_and else "|", truth, held)
            return truth
        place, yes, no, end = self.b.variable(bool), *map(self.b.label, ("yes", "no", "end"))
        self.condition(node, yes, no)
        for label, bit in ((yes, 1), (no, 0)):
            self.b.begin(label)
            self.b.put(bool, constant(bit, bool), place)
            self.b.jump(end)
        self.b.begin(end)
        return self.b.take(bool, place)

    def either(self, test: ast.expr, yes: ast.expr, no: ast.expr) -> Typed:
        """A select; both values are evaluated, so they must be free of effects."""
        # Only for cheap values: a load through a pointer that the test compares with null would
        # trap.
        condition = self.b.truth(self.value(test))
        return self.b.select(condition, self.value(yes), self.value(no))

    def call(self, func: ast.expr, args: list[ast.expr]) -> Typed:
        known = self.constant(func)
        match known:
            case NativeFunction():
                if not known.external:
                    self.called[known] = None
                parameters, _ = known.signature
                return self.b.call(known, self.arguments(args, parameters))
            case type() if issubclass(known, Pointer):
                return self.b.cast(known, self.value(args[0]))
            case _ if typing.get_origin(known) is Items:
                return self.b.cast(known, self.value(args[0]))
            case _ if known in OPERATIONS:
                return self.operation(known.__name__, args)
        if isinstance(func, ast.Name):
            return self.through(self.value(func), args)
        assert isinstance(func, ast.Attribute), f"{ast.unparse(func)} is no native function"
        held = self.constant(func.value)
        if isinstance(held, Member):
            return self.atomic(held, func.attr, args)
        if isinstance(held, type) and issubclass(held, Struct) and func.attr == "new":
            # Not zeroed, unlike in Python: the function fills it in.
            return self.b.local(f"[{held.SIZE} x i8]", 8, held)
        return self.method(func.value, func.attr, args)

    def arguments(self, args: list[ast.expr], types: tuple[Any, ...]) -> list[Typed]:
        assert len(args) == len(types), f"{len(args)} arguments for {len(types)} parameters"
        return [self.value(arg, kind) for arg, kind in zip(args, types, strict=True)]

    def method(self, owner: ast.expr, name: str, args: list[ast.expr]) -> Typed:
        """A method of a pointer, or an indirect call through a field."""
        base = self.value(owner)
        match name:
            case "plus":
                return self.b.offset(base, self.value(args[0]))
            case "nth":
                size = constant(base.type.SIZE)
                step = self.b.arithmetic("*", self.value(args[0]), size)
                return self.b.offset(base, step, base.type)
            case "after":
                at = self.b.at(base, self.value(args[0]), item_type(base.type))
                return Typed(base.type, at.text)
        return self.through(self.b.get(base, base.type.FIELDS[name]), args)

    def through(self, function: Typed, args: list[ast.expr]) -> Typed:
        """Call a function by its address."""
        assert typing.get_origin(function.type) is Callable, f"{function} is no function"
        types, result = typing.get_args(function.type)
        return self.b.call_at(function, types, result, self.arguments(args, tuple(types)))

    def atomic(self, field: Member[Any], name: str, args: list[ast.expr]) -> Typed:
        """An atomic operation on a field, or its address."""
        record = self.value(args[0])
        if name == "of":
            return Typed(Pointer, self.b.field(record, field).text)
        count = ATOMIC[name]
        values = [self.value(arg, field.type) for arg in args[1:count]]
        orders = [arg.value for arg in args[count:] if isinstance(arg, ast.Constant)]
        build: Any = getattr(self.b, {"load": "get", "store": "set"}.get(name, name))
        result = build(record, field, *values, *orders)
        return result if isinstance(result, Typed) else Typed(None, "")

    def operation(self, name: str, args: list[ast.expr]) -> Typed:
        """An operation that is an instruction or an LLVM intrinsic."""
        b = self.b
        if name == "fence":
            assert isinstance(args[0], ast.Constant), "a memory order is a literal"
            b.do(f"fence {args[0].value!s}")
        elif name == "relax":
            b.pause()
        elif name == "unreachable":
            b.unreachable()
        else:
            return apply_operation(b, name, [self.value(arg) for arg in args])
        return Typed(None, "")
