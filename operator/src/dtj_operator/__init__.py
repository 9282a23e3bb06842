"""The operator: reconcile = observe -> plan -> apply."""
