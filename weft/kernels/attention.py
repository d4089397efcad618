"""The contract of an attention kernel, the same for every target, forward and backward.

At every point of the outer dims (devices, batch, heads), for queries i and keys s:

    score[i, s] = scale * sum over d of q[i, d] * k[s, d] + bias_scale * bias[i, s]
    out[i]      = sum over s of softmax(score[i])[s] * v[s]
    lse[i]      = log(sum over s of exp(score[i, s]))

With a softcap, the scaled product is softcap * tanh(product / softcap), forward only.
Query i attends to keys i + shift - left .. i + shift + right; None means unbounded. Where a mask
hides a key the score becomes its `fill`. A row without visible keys yields `empty` (0 or NaN), and
-inf as its logsumexp. Grouped heads share keys and values along outer dims of stride 0; gradients
are accumulated along outer dims in which they have stride 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from weft.ir.types import F32, F64, DType
from weft.kernels.kernel import Operand
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Access:
    """Where the elements of an operand lie: an offset, and strides in elements.

    A row is a query or a key. A column is an index of the depth; of a mask or a bias, a key.
    Stride 0 broadcasts.
    """

    operand: int
    outer: tuple[int, ...]
    row: int
    column: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """The band of visible keys: i + shift - left .. i + shift + right; None: unbounded."""

    left: int | None = None
    right: int | None = None
    shift: int = 0  # 0 aligns the first query and key, keys - queries the last ones

    def visible_keys(self, query: int, keys: int) -> range:
        """The keys that a query attends to."""
        begin = 0 if self.left is None else max(0, query + self.shift - self.left)
        end = keys if self.right is None else min(keys, query + self.shift + self.right + 1)
        return range(begin, max(begin, end))

    @property
    def is_open(self) -> bool:
        """Whether every query attends to every key."""
        return self.left is None and self.right is None


@dataclass(frozen=True, slots=True)
class AttentionMask:
    """A boolean operand over queries and keys; where it is `hides` the score becomes `fill`."""

    access: Access
    fill: float = -math.inf  # finite in programs that write a large negative number instead
    hides: bool = False


@dataclass(frozen=True, slots=True)
class Gradients:
    """Operands of the backward kernel: it reads the gradient of out and writes those of the inputs.

    The gradients of q and k are multiplied by `q_scale` and `k_scale`, by default the scale of the
    scores. The gradient of the bias has one element for each (query, key) pair and outer point.
    """

    out: Access
    q: Access
    k: Access
    v: Access
    bias: Access | None = None
    q_scale: float | None = None
    k_scale: float | None = None

    def __iter__(self) -> Iterator[Access]:
        yield from (self.out, self.q, self.k, self.v)
        if self.bias is not None:
            yield self.bias


@dataclass(frozen=True, slots=True)
class Attention:
    """One launch of attention.

    With `gradients` it is the backward pass: it reads out and lse, and recomputes the
    probabilities.
    """

    name: str
    outer: tuple[int, ...]  # devices first, then batch and heads
    queries: int
    keys: int
    depth: int
    value_depth: int
    operands: tuple[Operand, ...]
    q: Access
    k: Access
    v: Access
    out: Access
    lse: Access | None = None
    scale: float = 1.0
    window: Window = Window()
    mask: AttentionMask | None = None
    bias: Access | None = None
    empty: Literal["zero", "nan"] = "zero"
    gradients: Gradients | None = None
    options: tuple[tuple[str, int], ...] = ()  # tile sizes, set by the schedule or the tuner
    bias_scale: float = 1.0
    softcap: float = 0.0  # 0: none

    def __post_init__(self) -> None:
        assert self.gradients is None or self.lse is not None, "backward reads the logsumexp"
        assert self.gradients is None or not self.softcap, "capped scores have no gradients"
        assert all(len(a.outer) == len(self.outer) for a in self.accesses()), (
            "a stride for each outer dim"
        )

    @property
    def held(self) -> DType:
        """The accumulator dtype of scores and sums."""
        return F64 if self.dtype(self.q) is F64 else F32

    def dtype(self, access: Access) -> DType:
        """The dtype of an operand."""
        return self.operands[access.operand].dtype

    @property
    def may_be_alike(self) -> bool:
        """Whether a fully masked row attends to its keys uniformly: the fill is finite."""
        return self.mask is not None and math.isfinite(self.mask.fill)

    @property
    def points(self) -> int:
        """The number of visible (query, key) pairs, over all outer points."""
        return math.prod(self.outer) * self._pair_count()

    @property
    def flops(self) -> int:
        """The flops of the matrix products: two forward, five backward."""
        if self.gradients is None:
            return 2 * self.points * (self.depth + self.value_depth)
        # The scores again, dq and dk are products over the depth; dp = d_out v^T and dv over the
        # value's.
        return 2 * self.points * (3 * self.depth + 2 * self.value_depth)

    @property
    def pairs(self) -> dict[str, Access]:
        """The bias and mask operands, which have one element for each (query, key) pair."""
        pairs = {} if self.bias is None else {"bias": self.bias}
        return pairs if self.mask is None else pairs | {"mask": self.mask.access}

    def accesses(self) -> Iterator[Access]:
        """Every access of the kernel."""
        yield from (self.q, self.k, self.v, self.out, *self.pairs.values())
        if self.lse is not None:
            yield self.lse
        yield from self.gradients or ()

    def _pair_count(self) -> int:
        if self.window.is_open:
            return self.queries * self.keys
        # Row by row: rows at both ends of the band see fewer keys than the window is wide.
        return sum(len(self.window.visible_keys(i, self.keys)) for i in range(self.queries))
