"""Questions: what JAX asks about programs, and what it is told."""
