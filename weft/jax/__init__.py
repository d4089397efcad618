"""The JAX front end: `JAX_PLATFORMS=weft python train.py` runs a JAX program on Weft's devices."""

from weft.jax.plugin import configure

__all__ = ["configure"]
