"""Paimon tables: the files and rows of a snapshot, and how they are read."""
