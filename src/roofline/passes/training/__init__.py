"""Passes that turn a forward into a training step."""
