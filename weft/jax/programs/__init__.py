"""Programs: compilation and execution of JAX's programs."""
