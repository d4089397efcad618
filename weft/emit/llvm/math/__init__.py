"""Elementwise ops and math functions on vectors."""
