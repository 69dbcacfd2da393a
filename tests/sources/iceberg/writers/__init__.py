"""Iceberg tables for the tests: catalogs, a merge-on-read writer, and readers by others."""
