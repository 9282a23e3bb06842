"""Recovery beside torchrun, NVRx and torchft: faults in real groups, times from the script's own log."""
