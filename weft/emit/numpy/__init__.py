"""The numpy target: node by node; it also computes what other targets leave to the host."""

from weft.emit.numpy.across import Workers as Workers
from weft.emit.numpy.collective import Lockstep as Lockstep
from weft.emit.numpy.target import Numpy as Numpy
