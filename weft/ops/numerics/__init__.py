"""The numerics of ops: numpy functions that the references of several families compute with."""
