"""PyTorch programs: exported to core ATen, whose graph becomes a module."""
