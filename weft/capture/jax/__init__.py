"""JAX: functions that are traced, and what JAX knows of their values."""
