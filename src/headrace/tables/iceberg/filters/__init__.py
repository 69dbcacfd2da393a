"""What a filter says of a table: its parts, the values it compares, the columns it names."""
