"""Tools of the repository itself: nothing in here is shipped."""
