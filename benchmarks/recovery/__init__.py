"""Recovery beside torchrun and NVRx: faults injected into real groups, times read from the script's own log."""
