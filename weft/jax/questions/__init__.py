"""Queries: the metadata that JAX requests about programs."""
