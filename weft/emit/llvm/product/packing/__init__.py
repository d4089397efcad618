"""Packing: both sides of a product in the order in which microkernels read them."""
