"""`dtj bench`: real steps over world sizes, strategies, batch sizes and links; runs again from where it was stopped."""
