"""The worker processes of this pod: their environment, output, reports and end."""
