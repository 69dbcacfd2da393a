"""Archives of records: ArrayRecord files, and how rows are packed into records."""
