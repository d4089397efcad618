"""Nodes on the host: numpy functions, cached by equal nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.executable.items import Site, Traits
from weft.ir.op import Op
from weft.ir.types import DType
from weft.kernels.host import Collectives, HostKernel
from weft.ops.custom_calls.callbacks import calls_python


class NumpyKernels:
    """Computes nodes one by one, caching the functions of one program.

    Collectives default to lockstep, for a process that holds all devices.
    """

    def __init__(self, collectives: Collectives | None = None) -> None:
        self.collectives = collectives
        self.process = None if collectives is None else collectives.process
        self._kernels: dict[object, HostKernel] = {}

    def kernel(self, site: Site, stream: str | None = None) -> HostKernel:
        """The function of a node, cached by equal nodes."""
        node = site.node
        rest = (site.stack_dims, site.given, site.made, site.summed, site.spread_by_readers, stream)
        key: object = (node, *rest)
        if not node.regions and not node.op.collective and not node.op.control:
            key = (node.op, node.operand_types, node.types, *rest)
        found = self._kernels.get(key)
        if found is None:
            found = self._kernels[key] = self._build(site, stream)
        return found

    def _build(self, site: Site, stream: str | None) -> HostKernel:
        # imported late: many programs have no such node, and most have collectives only
        from weft.emit.numpy import collective

        if type(site.op) in collective.KERNELS:
            return (self.collectives or collective.Lockstep()).kernel(site, stream)
        if self.process is not None and not site.op.collective and calls_python(site.op):
            from weft.emit.numpy.host_calls import is_shared_call, shared_call

            if is_shared_call(site):
                return shared_call(site, self.process)
        from weft.emit.numpy.table import kernel_of

        return kernel_of(site)

    def traits(self, site: Site) -> Traits:
        """The properties that the memory planner reads."""
        return self.kernel(site).traits

    def compute(self, site: Site, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Compute a node."""
        with np.errstate(all="ignore"):
            made = self.kernel(site).run(*operands)
        return made if isinstance(made, tuple) else (made,)

    def adds(self, dtype: DType) -> bool:
        """Whether arrays of a type are added by one ufunc."""
        from weft.emit.numpy.ufuncs import ufunc_of
        from weft.ops.elementwise.pointwise import Add

        return ufunc_of(Add, dtype) is not None

    def repeats(self, op: Op, dtype: DType) -> bool:
        """Whether an op's function broadcasts operands by itself."""
        from weft.emit.numpy.ufuncs import is_native, ufunc_of
        from weft.ops.elementwise.pointwise import Compare

        if not is_native(dtype) or dtype.is_complex:
            return False
        if isinstance(op, Compare):
            return op.compare_type != "TOTALORDER"
        return ufunc_of(type(op), dtype) is not None
