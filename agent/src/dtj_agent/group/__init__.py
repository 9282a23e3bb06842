"""The group protocol: state machines that take events and return effects.

Pure: no sockets, processes or clock.
"""
