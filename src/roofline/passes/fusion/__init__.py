"""Passes that decide which operators share a kernel."""
