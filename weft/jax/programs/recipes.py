"""Recipes: how native code calls a small program, worked out once (see `native.calls`)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

from weft.array.host import SMALL
from weft.emit.llvm.pool.unattended import Unattended
from weft.jax.buffers.values import number_of, step_of, template
from weft.jax.native.records import (
    READY,
    ArgumentPlan,
    CallRecipe,
    ExecutableRecord,
    ResultPlan,
    words,
)
from weft.jax.programs.executables import LoadedExecutable
from weft.kernels.work import work_of
from weft.run.direct import Direct

_LITTLE = 1 << 18  # bytes: fewer are gone through before another thread would be awake
_QUICK = 1 << 21  # steps of arithmetic: fewer take one thread no longer than that, too
_CALL = 16  # steps that a sine, a root or the like takes
_FEW = 64  # arguments: who donates some looks at all


def give_recipe(handle: int, loaded: LoadedExecutable) -> None:
    """Have native code call a program from now on, if it can."""
    direct = loaded.program.direct
    if direct is None or not _is_small(loaded, direct) or not _is_plain(loaded, direct):
        return
    unattended = direct.unattended(loaded.program.frame)
    said = [*_said(loaded, direct, unattended)]
    held = (ctypes.c_int64 * len(said))(*said)
    loaded.recipe = (held, unattended)
    words(handle)[ExecutableRecord.recipe.word] = ctypes.addressof(held)


def _is_small(loaded: LoadedExecutable, direct: Direct) -> bool:
    """Whether it ends before anything else could be done meanwhile."""
    most = max([nbytes for _, nbytes, _ in direct.made], default=0)
    little = loaded.at_once and loaded.program.memory().peak <= _LITTLE
    return little and most < SMALL and len(direct.given) <= _FEW and _steps(direct) <= _QUICK


def _steps(direct: Direct) -> int:
    """How much arithmetic its kernels do: little memory may be gone through many times."""
    groups = [item.group for item in direct.call.launches]
    work = [work_of(group.kernel) for group in groups if group is not None and group.kernel]
    return sum(one.flops + _CALL * one.transcendentals for one in work)


def _is_plain(loaded: LoadedExecutable, direct: Direct) -> bool:
    """Whether results are what its kernels write, and pieces are in the order of the devices."""
    inside, outside = loaded.described.inside, loaded.described.outside
    in_order = all(border.order is None for border in (*inside, *outside))
    dense = all(border.is_row_major for border in outside)
    fresh = direct.is_whole and not loaded.forwarded and all(own for *_, own in direct.made)
    steps = [step_of(kind) for kind, *_ in direct.made]
    return in_order and dense and fresh and None not in steps


def _said(loaded: LoadedExecutable, direct: Direct, unattended: Unattended) -> Iterator[int]:
    """The words of the recipe and of the plans that follow it."""
    yield from CallRecipe.words(
        run=unattended.run,
        pool=unattended.state,
        commands=unattended.commands,
        devices=loaded.count,
        arguments=len(direct.given),
        results=len(direct.made),
        templates=_templates(loaded, direct),
        on=loaded.on_at,
        inside=loaded.inside_at,
        blocks=loaded.described.words(ctypes.c_size_t, [0] * len(direct.made)),
        donates=int(bool(loaded.donated)),
    )
    for n, (kind, places) in enumerate(direct.given):
        donated = int(n in loaded.donated)
        yield from ArgumentPlan.words(count=len(places), kind=number_of(kind), donated=donated)
        yield from _operands(unattended, places)
    for n, ((_, nbytes, _), (_, places)) in enumerate(
        zip(direct.made, direct.written, strict=True)
    ):
        over = direct.over.get(n, -1)
        over = over if over in loaded.donated else -1
        yield from ResultPlan.words(count=len(places), nbytes=nbytes, over=over)
        yield from _operands(unattended, places)


def _operands(unattended: Unattended, places: Sequence[int]) -> list[int]:
    """Where the addresses of an argument or a result are to be."""
    return [unattended.pointers + 8 * place for place in places]


def _templates(loaded: LoadedExecutable, direct: Direct) -> int:
    """The records of the results' families, one after another."""
    pairs = zip(loaded.results, direct.made, strict=True)
    made = [template(*result, READY, kind=kind, native=True) for result, (kind, *_) in pairs]
    return loaded.described.bytes(b"".join(made))[0]
