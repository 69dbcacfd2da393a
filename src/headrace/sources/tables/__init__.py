"""Tables: files, deletes and a schema that changed over time, as one snapshot says."""
