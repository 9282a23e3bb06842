"""The names, reasons and message shapes that all parts share. Standard library only, Python 3.9 and later."""
