"""Elementwise ops and the functions they call, on vectors."""
