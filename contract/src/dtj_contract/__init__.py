"""The names, reasons and message shapes that every part shares. Standard library only, Python 3.9 and later."""
