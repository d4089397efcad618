"""One global program, partitioned: all devices together must give what one device gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.partition.inputs import arguments
from tests.partition.split import assembled, fits, held, mesh_of, scattered
from tests.tolerance import difference
from weft.capture import parse
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.module import Module, Node, Region
from weft.ir.types import Array, TensorType
from weft.ir.verify import verify
from weft.mesh import MeshAxes
from weft.shard import shard

LENGTH = 1 << 12  # roundings that a result of a whole program may sum up


class Wrong(AssertionError):
    """What is wrong, at which stage, and with which program."""

    def __init__(self, stage: str, message: str, local: Module | None = None) -> None:
        super().__init__(f"{stage}: {message}")
        self.stage = stage
        self.message = message
        self.local = local


@dataclass(frozen=True)
class Checked:
    """A program that was partitioned and found right."""

    local: Module
    arrays: tuple[Array, ...]  # of one device
    stacked: tuple[Array, ...]  # the pieces
    expected: tuple[Array, ...]
    results: tuple[Array, ...]  # stacked


def check(
    module: Module,
    arrays: Sequence[Array] | None = None,
    *,
    seed: int = 0,
    length: int = LENGTH,
    sharded: Module | None = None,
    local: Module | None = None,
) -> Checked:
    """Shard, partition and run a program, and compare it with one device; Wrong if it is."""
    whole = tuple(arguments(module, seed) if arrays is None else arrays)
    expected = evaluate(module, *whole)
    if local is None:
        given = sharded if sharded is not None else stage("shard", lambda: shard(module))
        local = stage("partition", lambda: partitioned(given))
    lint(local, module)
    stacked = cut(local, whole)
    mesh = mesh_of(local.function("main"), local.meshes)
    made = stage("run", lambda: evaluate(local, *stacked, devices=mesh.size), local)
    compare(local, made, expected, length)
    return Checked(local, whole, stacked, expected, made)


def partitioned(sharded: Module) -> Module:
    """The local program."""
    from weft.partition import partition

    return partition(sharded)


def stage(name: str, run: Callable[[], Any], local: Module | None = None) -> Any:
    """What a stage makes; whatever it raises says where it was raised."""
    try:
        return run()
    except WeftError as error:
        raise Wrong(name, f"{error.message} [{error.loc}]", local) from error
    except RecursionError as error:
        raise Wrong(name, "recursion", local) from error
    except Exception as error:  # any failure is to be shown
        raise Wrong(name, f"{type(error).__name__}: {error}", local) from error


def cut(local: Module, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The arguments of the local program: each array in pieces, stacked by device."""
    main = local.function("main")
    mesh = mesh_of(main, local.meshes)
    given, _ = held(main)
    if len(given) != len(arrays):
        raise Wrong("ends", f"{len(given)} arguments for {len(arrays)} arrays", local)
    return tuple(scattered(a, s, mesh) for a, (s, _) in zip(arrays, given, strict=True))


def compare(
    local: Module, made: Sequence[Array], expected: Sequence[Array], length: int = LENGTH
) -> None:
    """The results of all devices put together are those of one."""
    main = local.function("main")
    mesh = mesh_of(main, local.meshes)
    _, results = held(main)
    if len(results) != len(expected):
        raise Wrong("ends", f"{len(results)} results instead of {len(expected)}", local)
    for n, ((sharding, _), got, wanted) in enumerate(zip(results, made, expected, strict=True)):
        try:
            whole = assembled(got, wanted.shape, sharding, mesh)
        except AssertionError as error:
            raise Wrong("copies", f"result {n} ({sharding}): {error}", local) from None
        if found := difference(whole, wanted, length):
            raise Wrong("numbers", f"result {n} ({sharding}): {found}", local)


# What must hold whatever the numbers


def lint(local: Module, module: Module) -> None:
    """The local program is well formed: types, text, groups, locations, ends."""
    stage("verify", lambda: verify(local), local)
    text = local.text()
    again = stage("text", lambda: parse(text).text(), local)
    if again != text:
        raise Wrong("text", f"it is read back differently: {_first_difference(text, again)}", local)
    _check_ends(local, module)
    located = all(node.loc.known for node in module.nodes())
    own = any(node.op.collective for node in module.nodes())  # the user's may meet lists
    for function in local.functions.values():
        _check_region(function.body, local, located, own)


def _check_ends(local: Module, module: Module) -> None:
    before, after = module.function("main"), local.function("main")
    mesh = mesh_of(after, local.meshes)
    arguments, results = held(after)
    for what, found, locals_, wholes in (
        ("argument", arguments, after.arg_types, before.arg_types),
        ("result", results, after.result_types, before.result_types),
    ):
        if len(found) != len(wholes):
            raise Wrong("ends", f"{len(found)} {what}s instead of {len(wholes)}", local)
        for n, ((sharding, said), type, whole) in enumerate(
            zip(found, locals_, wholes, strict=True)
        ):
            if said != whole:
                raise Wrong("ends", f"{what} {n}: weft.global says {said}, not {whole}", local)
            if not fits(type, sharding, whole, mesh):
                raise Wrong("ends", f"{what} {n}: {type} is not a piece of {whole}", local)


def _check_region(region: Region, local: Module, located: bool, own: bool) -> None:
    for node in region.nodes:
        if located and not node.loc.known:
            raise Wrong("location", f"{node!r} has none", local)
        if node.op.collective and not own and not _is_along_axes(node):
            raise Wrong("groups", f"{node.op} meets lists of devices", local)
        if node.op.name.startswith("sdy."):
            raise Wrong("left over", f"{node!r}", local)
        if not node.op.collective:  # the regions of those are ours
            for inner in node.regions:
                _check_region(inner, local, located, own)


def _is_along_axes(node: Node) -> bool:
    groups = getattr(node.op, "replica_groups", None) or getattr(node.op, "axes", None)
    return isinstance(groups, MeshAxes)


def _first_difference(a: str, b: str) -> str:
    pairs = zip(a.splitlines(), b.splitlines(), strict=False)
    return next((f"{x.strip()} | {y.strip()}" for x, y in pairs if x != y), "lengths differ")


def all_tensors(module: Module) -> bool:
    """Whether main takes and gives static tensors only."""
    main = module.function("main")
    return all(
        isinstance(t, TensorType) and t.is_static for t in (*main.arg_types, *main.result_types)
    )


def is_finite(arrays: Sequence[Array]) -> bool:
    """Whether enough of the results are numbers for a comparison to mean something."""
    floats = [a for a in arrays if a.dtype.kind in "fcV" and a.size]
    return all(np.isfinite(a.astype(np.complex128)).mean() > 0.5 for a in floats)
