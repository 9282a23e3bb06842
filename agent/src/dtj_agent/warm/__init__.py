"""The warm process and the workers that are forked from it: this package runs in the worker's interpreter.

That interpreter may be another Python than the agent's, so this package imports only the standard
library, dtj_contract, and what the interpreter has imported already. The server removes these
packages from sys.modules before any other import, because the image may have its own dtj_contract:
import what you need at the top of a module, not in a function.
"""
