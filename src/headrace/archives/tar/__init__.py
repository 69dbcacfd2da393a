"""Tar archives by their index: any member of any shard at once."""
