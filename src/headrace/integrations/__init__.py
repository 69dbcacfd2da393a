"""Callbacks for training frameworks, a module for each, which is imported when asked for."""
