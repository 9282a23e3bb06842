"""`dtj export`: a checkpoint's model as one file that other programs read."""
