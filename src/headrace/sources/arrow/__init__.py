"""Rows of Arrow IPC files and tables, located by their metadata and gathered with numpy."""
