"""Tabular files: Parquet, ORC, CSV, JSON and Arrow, and their rows as Arrow tables."""
