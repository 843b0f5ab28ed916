"""How long one instruction occupies an engine: pure functions, one module a kind of engine."""
