"""Passes that spread a program over devices."""
