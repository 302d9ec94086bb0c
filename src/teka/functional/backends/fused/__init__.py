"""The linear backend on a CPU: one head and a block of tokens at a time, so that features never leave the cache."""
