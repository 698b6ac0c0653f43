"""Questions about a program on a chip: time, batch, comparison, scaling, serving, training."""
