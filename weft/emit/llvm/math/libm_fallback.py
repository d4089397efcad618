"""Rare lanes: libm calls and long formulas in a block that is branched over otherwise."""

from __future__ import annotations

from collections.abc import Callable

from weft.emit.llvm.writer.vector import Vector, Vectors


def with_libm_fallback(
    v: Vectors, lanes: Vector, name: str, common: Vector, *args: Vector
) -> Vector:
    """Lanes by libm where any lane is marked; else `common`."""
    return where_any(v, lanes, lambda: one_by_one(v, name, *args), common)


def where_any(v: Vectors, lanes: Vector, compute: Callable[[], Vector], common: Vector) -> Vector:
    """Marked lanes of what is computed only if there are some; else `common`."""
    code, before = v.code, v.code.block
    some = v.total("or", lanes)
    slow, after = code.fresh("slow"), code.fresh("after")
    code.do(f"br i1 {some.text}, label %{slow}, label %{after}")
    code.start(slow)
    mixed = v.select(lanes, compute(), common)
    last = code.block
    code.do(f"br label %{after}")
    code.start(after)
    phi = f"phi {common.type} [{common.text}, %{before}], [{mixed.text}, %{last}]"
    return Vector(code.let(phi), common.kind, common.width)


def one_by_one(v: Vectors, name: str, *args: Vector) -> Vector:
    """A libm function (sin, fmod, ...) of every lane, in a loop through memory."""
    first = args[0]
    if first.width == 1:
        return _call(v, name, args)
    code = v.code
    stack = code.call("ptr", "llvm.stacksave.p0")
    places = [code.let(f"alloca {arg.type}, align 64") for arg in args]
    for place, arg in zip(places, args, strict=True):
        v.store(arg, place, 64)
    one = Vectors(code, 1)
    with code.loop(0, first.width) as loop:
        scalars = tuple(one.load(one.at(p, loop.index, first.kind), first.kind) for p in places)
        one.store(_call(one, name, scalars), one.at(places[0], loop.index, first.kind))
    found = v.load(places[0], first.kind, 64)
    code.declare("declare void @llvm.stackrestore.p0(ptr)")
    code.do(f"call void @llvm.stackrestore.p0(ptr {stack})")
    return found


def _call(v: Vectors, name: str, args: tuple[Vector, ...]) -> Vector:
    kind = args[0].kind
    full = name + "f" if kind == "float" else name
    return Vector(v.code.call(kind, full, *((kind, a.text) for a in args)), kind)
