"""The warm process and the workers that are forked from it: this package runs in the worker's interpreter.

That interpreter may be another Python than the agent's, so this package imports only the standard
library, dtj_contract, and what the interpreter has imported already.
"""
