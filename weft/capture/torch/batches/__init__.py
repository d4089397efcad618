"""Batches of varying size: padded to a few sizes where rows are independent."""
