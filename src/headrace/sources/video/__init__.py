"""Windows of video frames, one encoded frame a row of a Lance dataset."""
