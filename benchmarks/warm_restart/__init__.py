"""The time from a killed rank to the first step resumed, of scripts that people write with each framework."""
