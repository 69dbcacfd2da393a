"""What users call the options of each kind of store, and what its client calls them."""
