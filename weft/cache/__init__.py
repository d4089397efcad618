"""The on-disk cache: machine code, tiled programs and tuning results, across runs."""
