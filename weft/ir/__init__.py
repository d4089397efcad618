"""The IR: types, values, nodes, modules, their text, and their rewriting."""
