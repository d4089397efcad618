"""Sharding annotations of a program: finding and replacing them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from weft.ir.attrs import Attrs
from weft.ir.module import Module, Node
from weft.ir.names import SHARDING
from weft.ir.op import Op
from weft.ir.rebuild import rewrite
from weft.mesh import Sharding, parse_sharding, parse_shardings
from weft.ops.function_summaries import FunctionSummaries, sharding_fields

ResultShardings = tuple[Sharding | None, ...]

_one = lru_cache(maxsize=4096)(parse_sharding)
_many = lru_cache(maxsize=4096)(parse_shardings)


def sharding_attribute(attrs: Iterable[tuple[str, str]]) -> Sharding | None:
    """The sharding among the attributes of an argument or result."""
    for name, text in attrs:
        if name == SHARDING:
            return _one(text)
    return None


def shardings_of(node: Node) -> ResultShardings:
    """The sharding annotations of a node's results.

    A call without results may have one, too: it names the calling device and splits nothing.
    """
    for name, text in node.attrs:
        if name == SHARDING:
            return _many(text) if node.results else ()
    return (None,) * len(node.results)


def all_shardings(module: Module, surveys: FunctionSummaries) -> Iterator[Sharding]:
    """Every sharding in a module, in program order."""
    for function in module.functions.values():
        for attrs in (*function.arg_attrs, *function.res_attrs):
            if (given := sharding_attribute(attrs)) is not None:
                yield given
        for node in surveys[function.body].notable:
            yield from _held(node)


def _held(node: Node) -> Iterator[Sharding]:
    for name in sharding_fields(type(node.op)):
        held = getattr(node.op, name)
        if isinstance(held, Sharding):
            yield held
        elif held is not None:
            yield from held
    if node.attrs:
        yield from (s for s in shardings_of(node) if s is not None)


def replace_shardings(
    module: Module, surveys: FunctionSummaries, change: Callable[[Sharding], Sharding]
) -> Module:
    """The module with every sharding changed; the same one if none is."""
    became: dict[Sharding, Sharding] = {}
    for sharding in all_shardings(module, surveys):
        if sharding not in became:
            became[sharding] = change(sharding)
    if all(old == new for old, new in became.items()):
        return module

    def renew(node: Node) -> Node | None:
        op, attrs = _renewed_op(node.op, became), _renewed(node.attrs, became)
        if op is node.op and attrs == node.attrs:
            return None
        return Node(op, node.operands, node.types, node.regions, attrs, node.loc)

    result = rewrite(module, renew)
    functions = {
        name: replace(
            f,
            arg_attrs=tuple(_renewed(a, became) for a in f.arg_attrs),
            res_attrs=tuple(_renewed(a, became) for a in f.res_attrs),
        )
        for name, f in result.functions.items()
    }
    return result.with_functions(functions)


def _renewed_op(op: Op, became: dict[Sharding, Sharding]) -> Op:
    changes: dict[str, object] = {}
    for name in sharding_fields(type(op)):
        held = getattr(op, name)
        if isinstance(held, Sharding):
            changes[name] = became.get(held, held)
        elif held is not None:
            changes[name] = tuple(became.get(s, s) for s in held)
    return op.replace(**changes) if changes else op


def _renewed(attrs: Attrs, became: dict[Sharding, Sharding]) -> Attrs:
    return tuple(
        (name, _text(text, became)) if name == SHARDING else (name, text) for name, text in attrs
    )


def _text(text: str, became: dict[Sharding, Sharding]) -> str:
    if not text.startswith("#sdy.sharding_per_value"):
        found = _one(text)
        return str(became.get(found, found))
    return per_value(tuple(became.get(s, s) for s in _many(text)))


def per_value(shardings: Iterable[Sharding]) -> str:
    """The text of the shardings of several values."""
    return f"#sdy.sharding_per_value<[{', '.join(s.body() for s in shardings)}]>"
