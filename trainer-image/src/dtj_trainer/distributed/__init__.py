"""Process groups, the rendezvous of the ranks, and what ranks agree on."""
