"""Paimon tables: which files and rows a snapshot has, and how they are read."""
