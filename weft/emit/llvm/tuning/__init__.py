"""Tuning candidates of contractions, and the shape classes that they are measured for."""
