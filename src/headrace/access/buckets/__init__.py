"""Batches of samples of one shape."""
