"""Data at rest: files, tables and archives that can be planned and read."""
