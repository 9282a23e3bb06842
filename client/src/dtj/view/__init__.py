"""Shows a local run: a live table on a terminal, lines elsewhere, a summary at the end."""
