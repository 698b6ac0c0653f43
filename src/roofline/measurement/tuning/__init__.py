"""Blocked matmuls on the CPU at hand: variants, a cost model that learns, search, and what was measured before."""
