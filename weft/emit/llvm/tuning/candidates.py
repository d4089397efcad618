"""Candidates for a class of contractions: the cost model's choice, and alternatives."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar, TypeAlias

from weft.emit.llvm.jit.blas import libraries
from weft.emit.llvm.jit.processor import host
from weft.emit.llvm.pool.thread_count import thread_count
from weft.emit.llvm.product.blocking.blocking import Blocking, Chip, chip_of
from weft.emit.llvm.product.blocking.choice import choose_blocking
from weft.emit.llvm.schedule import OPTIONS
from weft.emit.llvm.tuning.product_class import ProductClass, class_of
from weft.kernels.kernel import Kernel
from weft.kernels.option_names import name_of, options_named
from weft.records import dataclass
from weft.target import AS_MODELLED

CandidateOptions: TypeAlias = "dict[str, int]"

BLAS = "blas "  # followed by the library's name
_MOST = 9
_WORTH = 1 << 21  # multiplications; fewer are not worth tuning
_SMALL = 1 << 20  # elements of a result that may exist as several partial sums
_LEAST_PART = 256  # K steps


@dataclass(frozen=True)
class ProductCandidates:
    """Candidate schedules of one contraction on this machine."""

    kernel: Kernel
    kind: ClassVar[str] = "product"

    @property
    def why_not_tuned(self) -> str:
        """Why tuning cannot pay off, or an empty string."""
        is_small = math.prod([factor.size for factor in self.kernel.factors]) < _WORTH
        return "so little work is not measured" if is_small else ""

    @property
    def machine(self) -> str:
        """The machine properties that measurements depend on: processor and thread count."""
        return machine_name()

    @cached_property
    def _class(self) -> ProductClass:
        return class_of(self.kernel, chip_of(host()))

    @property
    def shape_class(self) -> str:
        """The class of contractions that share a best candidate."""
        return self._class.text

    def ways(self) -> dict[str, CandidateOptions]:
        """All candidates, the model's first."""
        return candidates(self._class, chip_of(host()))

    def options(self, name: str) -> CandidateOptions | None:
        """The options of a candidate; None if unavailable in this process."""
        return options_of(name)


def machine_name() -> str:
    """Processor and thread count."""
    features = hashlib.sha256(host().features.encode()).hexdigest()[:8]
    return f"{host().cpu} ({features}), threads: {thread_count()}"


def candidates(wanted: ProductClass, chip: Chip) -> dict[str, CandidateOptions]:
    """Candidates of a class, by name; the first is the model's."""
    model = choose_blocking(wanted.shape, chip, {})
    options_by_name: dict[str, CandidateOptions] = {AS_MODELLED: {}}
    if wanted.by_library:
        options_by_name |= {
            f"{BLAS}{library.name}": {"blas": n}
            for n, library in enumerate(libraries())
            if wanted.shape.kind in library.kinds
        }
    seen = {model}
    for options in _others(wanted, chip, model):
        blocking = choose_blocking(wanted.shape, chip, options)
        if blocking not in seen or "tiles" in options:
            seen.add(blocking)
            options_by_name[name_of(options)] = options
    return dict([*options_by_name.items()][:_MOST])


def options_of(name: str) -> CandidateOptions | None:
    """The options of a candidate's name; None if unavailable in this process."""
    if name == AS_MODELLED:
        return {}
    if name.startswith(BLAS):
        names = [library.name for library in libraries()]
        wanted = name.removeprefix(BLAS)
        return {"blas": names.index(wanted)} if wanted in names else None
    return options_named(name, OPTIONS["packed"])


def _others(wanted: ProductClass, chip: Chip, model: Blocking) -> Iterator[CandidateOptions]:
    """Options that differ from the model's in one choice, the most promising first."""
    shape = wanted.shape
    if shape.tiled:
        yield {"tiles": 0}
    if shape.rhs_lines == "columns" and model.rows.count <= 2 and not shape.offset:
        yield from ({"stream": 0}, {"stream": 1})
    if shape.inner:
        yield {"inner": int(not model.inner)}
    if model.parts > 1:
        yield {"parts": 1}
    elif shape.k >= 2 * _LEAST_PART and shape.rows * shape.columns <= _SMALL:
        yield {"parts": min(chip.threads, shape.k // _LEAST_PART)}
    if shape.rhs_direct:
        yield {"rhs": 0 if model.rhs != "direct" else 1}
    if model.rhs != "direct":
        yield {"rhs": 1 if model.rhs == "shared" else 2}
    if shape.lhs_direct:
        yield {"lhs": int(model.lhs == "direct")}
    yield {"task_vectors": 2 * model.task_vectors}
    if not model.inner and not shape.tiled:
        most = model.vectors.most
        yield from ({"vectors": n} for n in (most - 1, most + 1) if n >= 1)
    if model.task_vectors > 1:
        yield {"task_vectors": model.task_vectors // 2}
    if model.task_rows > 1:
        yield {"task_rows": -(-model.task_rows // 2)}
    yield {"block_k": 2 * model.block_k}
    if model.block_k >= 256:
        yield {"block_k": model.block_k // 2}
