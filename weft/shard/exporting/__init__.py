"""Export: the module after propagation, with a sharding for every value."""
