"""Native: what JAX calls without Python, and the way into Python and back."""
