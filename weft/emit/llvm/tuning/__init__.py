"""Candidates of a product, measured, and what was found to be the fastest."""
