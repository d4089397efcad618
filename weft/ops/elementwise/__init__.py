"""Elementwise ops: arithmetic, transcendental and special functions, conversions, broadcasting."""
