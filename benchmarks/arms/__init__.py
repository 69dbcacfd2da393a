"""The arms: each is one way to do one piece of work, run alone in its own process."""
