"""Backends that run graphs: one protocol, and a class for each library."""
