"""Targets: what groups a program's nodes into kernels, emits them, and runs them."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from weft.cache.code import code_digest
from weft.cache.entry import Key
from weft.cache.store import the_store
from weft.emit.llvm.attention.attention import emit_attention
from weft.emit.llvm.capable import computes
from weft.emit.llvm.emit import emit
from weft.emit.llvm.jit.engine import Loaded, load
from weft.emit.llvm.jit.machine_code import Processor, host
from weft.emit.llvm.pool.commands import Commands
from weft.emit.llvm.product.product import HELD
from weft.emit.llvm.single.alone import EMIT as STANDING_ALONE
from weft.emit.llvm.single.alone import emit_alone
from weft.emit.llvm.tuning.tuned import is_tuned, tuned
from weft.errors import Unsupported, WeftError
from weft.ir.module import Node, Value
from weft.ir.types import DType, TensorType
from weft.kernels.alone import Alone, alone
from weft.kernels.attention import Attention
from weft.kernels.emitted import Emitted, decode, encode
from weft.kernels.group import Group, Launch
from weft.kernels.kernel import Kernel
from weft.kernels.placed import Placed
from weft.knobs import TUNE, TUNES, Tune
from weft.ops.collective import AllReduce, ReduceScatter
from weft.ops.reduce import Reduce
from weft.tile import tile
from weft.tile.pulls import PRODUCTS, held_in
from weft.tile.recall import fingerprint, packed, restored
from weft.tile.sums import sums_apart


class LLVM:
    """CPUs, through LLVM."""

    name = "llvm"

    def __init__(
        self, *, fold_sums: bool = True, tune: Tune | None = None, excess_precision: bool = True
    ) -> None:
        self.fold_sums = fold_sums
        self.excess_precision = excess_precision
        self.tune: Tune = TUNE.value() if tune is None else tune

    def group(
        self, placed: Sequence[Placed], sizes: tuple[int, ...], results: Sequence[Value]
    ) -> Sequence[Group]:
        """The nodes of a region as kernels, in an order in which they can run.

        What was decided for a large region is remembered on disk. Products take the candidates
        that are the fastest, as far as is known.
        """
        chosen: dict[Kernel, Kernel] = {}
        found: list[Group] = []
        for group in self._groups(placed, sizes, results):
            kernel = group.kernel
            if kernel is None and isinstance(group.nodes[-1].op, REDUCTIONS):
                _say_of_numpy(group.nodes[-1])
            if self.tune != "off" and isinstance(kernel, Kernel) and is_tuned(kernel):
                if kernel not in chosen:
                    chosen[kernel] = tuned(kernel, self.tune)
                group = replace(group, kernel=chosen[kernel])
            found.append(group)
        return found

    def _groups(
        self, placed: Sequence[Placed], sizes: tuple[int, ...], results: Sequence[Value]
    ) -> Sequence[Group]:
        if self.fold_sums:
            placed = sums_apart(placed, results)
        if len(placed) < LARGE:
            return self._grouped(placed, sizes, results)
        store, parts = the_store(), [("region", fingerprint(placed, sizes, results))]
        parts += [("processor", repr(host())), ("fold_sums", str(self.fold_sums))]
        parts += [("excess_precision", str(self.excess_precision))]
        key = Key("groups", f"{len(placed)} nodes", tuple(parts))
        data = store.get(key)
        if data is not None:
            try:
                groups = restored(data, placed, sizes)
            except WeftError:
                store.refuse(key)
            else:
                _recall_texts(data, groups)
                return groups
        groups = self._grouped(placed, sizes, results)
        data = packed(groups, placed)
        if data is not None:
            store.put(key, data)
            store.put(_texts_key(data), encode([emitted(kernel) for kernel in _kernels(groups)]))
        return groups

    def _grouped(
        self, placed: Sequence[Placed], sizes: tuple[int, ...], results: Sequence[Value]
    ) -> list[Group]:
        return tile(
            placed,
            sizes,
            results,
            refuses=refuses,
            alone=lambda p: self._alone(p, sizes),
            emits=_is_emitted,
            fold_sums=self.fold_sums,
            excess_precision=self.excess_precision,
        )

    def _alone(self, placed: Placed, sizes: tuple[int, ...]) -> Alone | None:
        kernel = _alone(placed, sizes)
        if kernel is None or self.excess_precision:
            return kernel
        return replace(kernel, excess_precision=False)

    def strict(self) -> LLVM:
        """The same target without excess precision."""
        return LLVM(fold_sums=self.fold_sums, tune=self.tune, excess_precision=False)

    def load(self, kernels: Sequence[Launch]) -> Sequence[Loaded]:
        """Kernels in memory."""
        return load([emitted(kernel) for kernel in kernels])

    def commands(self) -> Commands:
        """An empty list of commands."""
        return Commands()


TARGETS = ("llvm", "numpy")
REDUCTIONS = (Reduce, AllReduce, ReduceScatter)  # whose regions kernels have as steps
LARGE = 300  # nodes of a region that takes long enough to group


def target_named(
    name: str | None,
    *,
    fold_sums: bool = True,
    tune: Tune | None = None,
    excess_precision: bool = True,
) -> LLVM | None:
    """The target of a name; None, which is numpy node by node, has no kernels.

    Without a name it is llvm, where that is installed.
    """
    if tune not in (None, *TUNES):
        raise WeftError(
            f"no way of tuning is called {tune!r}", help=f"there are {', '.join(TUNES)}"
        )
    if name not in (None, *TARGETS):
        raise WeftError(f"no target {name!r}", help=f"targets are {', '.join(TARGETS)}")
    if name == "numpy":
        return None
    if importlib.util.find_spec("llvmlite") is not None:
        return LLVM(fold_sums=fold_sums, tune=tune, excess_precision=excess_precision)
    if name == "llvm":
        raise WeftError("the llvm target needs llvmlite", help="pip install 'weft[cpu]'")
    _say_once("llvmlite is not installed: nodes run one by one in numpy; pip install 'weft[cpu]'")
    return None


@cache
def _say_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)


def _say_of_numpy(node: Node) -> None:
    """Warn of a reduction that numpy computes because of its element type."""
    if refuses(node):
        dtypes = dict.fromkeys([t.dtype.name for t in node.types if isinstance(t, TensorType)])
        _say_once(f"{node.op.name} of {', '.join(dtypes)} has no kernel for CPUs: numpy runs it")


def refuses(node: Node) -> bool:
    """Whether a node is none that can be a step of a kernel, because of its op or its types."""
    if type(node.op) in PRODUCTS:
        return not isinstance(made := node.types[0], TensorType) or not added_up(made.dtype)
    if isinstance(node.op, REDUCTIONS):
        return any(len(r.nodes) == 1 and refuses(r.nodes[0]) for r in node.regions)
    if not node.op.elementwise or not node.operands:
        return False
    types = (*node.operand_types, *node.types)
    dtypes = [t.dtype for t in types if isinstance(t, TensorType)]
    if len(dtypes) < len(types) or len(node.results) != 1:
        return True
    return not computes(node.op, tuple(dtypes[:-1]), dtypes[-1])


def _alone(placed: Placed, sizes: tuple[int, ...]) -> Alone | None:
    """The kernel of a node by itself, if there is one that can be emitted."""
    if type(placed.node.op) not in STANDING_ALONE:
        return None
    kernel = alone(placed, sizes)
    return kernel if kernel is not None and _is_emitted(kernel) else None


def _is_emitted(kernel: Launch) -> bool:
    """Whether this target has a kernel; the reason why not is told by `weft ops`."""
    try:
        emitted(kernel)
    except Unsupported:
        return False
    return True


def added_up(dtype: DType) -> bool:
    """Whether products can be added up to a result of that type."""
    return held_in(dtype).name in HELD


_TEXTS: dict[Launch, Emitted] = {}  # of the kernels that this process has met lately
MOST_TEXTS, MOST_CHARACTERS = 1024, 1 << 24  # that are kept
FEW_POINTS, FEW_BYTES = 1 << 10, 1 << 13  # of kernels whose calls take longer than they do


def emitted(kernel: Launch) -> Emitted:
    """The text of a kernel."""
    found = _TEXTS.get(kernel)
    if found is None:
        made = emitted_for(kernel, host())
        _make_room(len(made.text))
        found = _TEXTS[kernel] = replace(made, brief=True) if _is_brief(kernel) else made
    return found


def _kernels(groups: Sequence[Group]) -> list[Launch]:
    """The kernels of groups, each once."""
    return list(dict.fromkeys([g.kernel for g in groups if g.kernel is not None]))


def _texts_key(groups: bytes) -> Key:
    """What the texts of all kernels of groups, of which these are the bytes, are made of."""
    digest = hashlib.sha256(groups).hexdigest()
    parts = (("kernels", digest), ("processor", repr(host())), ("code", code_digest()))
    return Key("texts", digest[:8], parts)


def _recall_texts(data: bytes, groups: Sequence[Group]) -> None:
    """Take the texts that were emitted for groups, as far as the cache has them."""
    store, key, kernels = the_store(), _texts_key(data), _kernels(groups)
    stored = store.get(key)
    if stored is None:
        return
    try:
        _TEXTS.update(zip(kernels, decode(stored), strict=True))
    except (ValueError, TypeError, zlib.error):
        store.refuse(key)


def _make_room(characters: int) -> None:
    """Forget texts, the oldest first, to have room for one of so many characters."""
    kept = [*_TEXTS.items()]  # at once: other threads compile, too
    total = characters + sum([len(made.text) for _, made in kept])
    for left, (kernel, made) in zip(range(len(kept), 0, -1), kept, strict=True):
        if left < MOST_TEXTS and total <= MOST_CHARACTERS:
            return
        _TEXTS.pop(kernel, None)
        total -= len(made.text)


def _is_brief(kernel: Launch) -> bool:
    """Whether a kernel has so little to do that its code need not be good."""
    points = math.prod([f.size for f in kernel.factors]) if isinstance(kernel, Kernel) else 0
    return points <= FEW_POINTS and sum([o.nbytes for o in kernel.operands]) <= FEW_BYTES


def emitted_for(kernel: Launch, processor: Processor) -> Emitted:
    """The text of a kernel for any processor, which need not be this machine's."""
    match kernel:
        case Kernel():
            return emit(kernel, processor)
        case Alone():
            return emit_alone(kernel)
        case Attention():
            return emit_attention(kernel, processor)
