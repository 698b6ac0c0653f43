"""Passes that replace a program by an equivalent or a smaller one."""
