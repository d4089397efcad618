"""The numpy target: node by node; also the fallback for nodes without kernels on other targets."""

from weft.emit.numpy.target import Numpy as Numpy
from weft.executable.process import Process


def host_of(process: Process | None) -> Numpy:
    """The host kernels of an engine: in lockstep, or as one of several processes."""
    if process is None:
        return Numpy()
    from weft.emit.numpy.across import Workers  # imported late: most programs need none of it

    return Numpy(Workers(process))
