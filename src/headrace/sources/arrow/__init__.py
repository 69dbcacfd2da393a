"""Rows of Arrow IPC files and tables: where each lies is known, and gathered with numpy."""
