"""The numpy target: no kernels; the host computes every node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from weft.target import OpSupport, Target

if TYPE_CHECKING:
    from weft.ir.op import Op
    from weft.kernels.group import AnyKernel

_WHY = "numpy has no kernels"


class Numpy(Target):
    """A target without kernels."""

    @property
    def name(self) -> str:
        return "numpy"

    @property
    def has_kernels(self) -> bool:
        return False

    @property
    def table(self) -> Mapping[type[Op], OpSupport]:
        return _table()

    def unsupported_kernel(self, kernel: AnyKernel) -> str:
        return _WHY

    def load(self, kernels: Sequence[Any]) -> Sequence[Any]:
        assert not kernels, _WHY
        return ()

    def commands(self) -> NoReturn:
        raise AssertionError(_WHY)


@cache
def _table() -> Mapping[type[Op], OpSupport]:
    from weft.ops import OPS  # only `weft ops` and explanations read it

    return MappingProxyType(dict.fromkeys(OPS, OpSupport("library", "numpy", _WHY)))


NUMPY = Numpy()
