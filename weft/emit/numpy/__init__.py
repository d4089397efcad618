"""The numpy target: node by node; it also computes what other targets leave to the host."""

from weft.emit.numpy.target import Numpy as Numpy
from weft.executable.process import Process


def host_of(process: Process | None) -> Numpy:
    """What computes nodes without kernels, in lockstep or as one of several processes."""
    if process is None:
        return Numpy()
    from weft.emit.numpy.across import Workers  # which most programs need nothing of

    return Numpy(Workers(process))
