"""Compressed gradients: their gain on a slow link, and their cost in loss."""
