"""Rows of Parquet files by row group and page."""
