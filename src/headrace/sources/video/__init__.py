"""Windows of video frames, from a Lance dataset with one encoded frame a row."""
