"""Programs as explicit loop nests, passes on them, and their text as MLIR."""
