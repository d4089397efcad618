"""Commands about this installation: its ops, cache, knobs, health and conformance."""
