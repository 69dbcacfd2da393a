"""Iceberg tables: the files and rows of a snapshot."""
