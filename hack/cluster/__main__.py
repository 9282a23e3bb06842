"""Temporary."""
import sys
from hack.cluster import gobuild
names = sys.argv[2:]
print(gobuild.bin_folder(names))
