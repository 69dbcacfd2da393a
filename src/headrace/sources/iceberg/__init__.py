"""Iceberg tables: what a snapshot holds, and its rows."""
