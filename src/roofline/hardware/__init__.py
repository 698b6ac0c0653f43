"""Chips and clusters: what a file of one says, and how it is found."""
