"""Ragged dots: tiles of the rows of one group, found on the device."""
