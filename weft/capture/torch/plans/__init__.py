"""Plans: shardings of parameters, buffers and arguments, and constraints inside of a module."""
