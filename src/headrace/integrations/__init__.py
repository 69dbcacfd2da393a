"""What training frameworks need beside a loader; a module a framework, imported when asked for."""
