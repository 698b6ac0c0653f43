"""Profiler files: read, repaired where they are broken, and linked. Knows no graph and no chip."""
