"""The cache: what is remembered on disk from run to run, machine code and tuned choices."""
