"""A map-style dataset over any backend: views, batches, formats, decoders."""
