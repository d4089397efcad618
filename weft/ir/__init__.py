"""The IR: types, values, nodes, modules, their text, and how they are rewritten."""
