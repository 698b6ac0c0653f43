"""Continuous batching step by step: the policy of the closed forms, as a discrete-event simulation."""
