"""Sockets: the event loop, proven connections between agents, the listening port."""
