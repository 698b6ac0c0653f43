"""A graph's kernels, FLOPs, bytes and memory; knows no chip."""
