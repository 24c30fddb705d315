"""Real processes for every run: a warm server, one supervisor for each launch, its ranks, the caller's handles."""
