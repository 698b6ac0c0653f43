"""Measure the machine at hand: calibrate a chip, time code, compare backends."""
