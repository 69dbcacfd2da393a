"""Tables: the files, deletes and schema of one snapshot."""
