"""Programs: what JAX hands over, compiled and run."""
