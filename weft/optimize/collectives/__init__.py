"""Passes on collectives: fewer of them, of fewer bytes, overlapped with computation."""
