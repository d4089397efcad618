"""JAX as a source: tracing of functions, and conversion of their values."""
