"""Candidates of a product, and the classes of shapes that they are measured for."""
