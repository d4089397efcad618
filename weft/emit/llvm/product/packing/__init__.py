"""Packing: operands rearranged into the order in which microkernels read them."""
