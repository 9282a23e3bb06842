"""Converts job files of other systems into a DistributedTrainingJob.

Every module holds a table of the fields that it knows; the pages in docs/migrate are written from the same tables.
"""
