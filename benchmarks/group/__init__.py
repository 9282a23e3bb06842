"""All members of a large group fail at once: time, messages and memory until the next attempt."""
