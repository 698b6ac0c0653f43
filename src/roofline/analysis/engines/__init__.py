"""A program on the engines of a device: which kernels, copies and collectives run at once, and what waits for what."""
