"""Varying: along which axes of the mesh the values of a local program differ between devices."""

from weft.varying.facts import Learned, Varying, varying
from weft.varying.world import axes_of

__all__ = ["Learned", "Varying", "axes_of", "varying"]
