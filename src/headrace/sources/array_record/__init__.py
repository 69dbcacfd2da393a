"""Records of ArrayRecord files by their number, and in order."""
