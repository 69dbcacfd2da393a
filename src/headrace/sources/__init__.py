"""Sources: files, tables and archives that can be planned and read."""
