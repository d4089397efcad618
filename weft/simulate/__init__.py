"""Discrete-event simulation of a tiled program on a machine's streams and links."""

from weft.simulate.noise import QUIET, Noise
from weft.simulate.simulate import simulate

__all__ = ["QUIET", "Noise", "simulate"]
