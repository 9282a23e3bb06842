"""The operator's own copy of the objects that it reads: lists and watches keep it, reconciles read it."""
