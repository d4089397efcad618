"""Passes on collectives: fewer of them, of fewer bytes, and beside other work."""
