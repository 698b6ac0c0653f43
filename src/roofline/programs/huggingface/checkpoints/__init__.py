"""Checkpoints that have layers of their own: what they add, how their configs are read, one row per ``model_type``."""
