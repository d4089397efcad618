"""The numpy target: node by node; also the fallback for nodes without kernels on other targets."""

from weft.emit.numpy.host import NumpyKernels as NumpyKernels
from weft.executable.process import Process


def host_of(process: Process | None) -> NumpyKernels:
    """The host kernels of an engine: in lockstep, or as one of several processes."""
    if process is None:
        return NumpyKernels()
    from weft.emit.numpy.across import Workers  # imported late: most programs need none of it

    return NumpyKernels(Workers(process))
