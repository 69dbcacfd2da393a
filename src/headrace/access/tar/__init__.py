"""Samples of indexed tars as rows."""
