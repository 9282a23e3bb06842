"""The decisions: pure functions of what was observed and the time. No I/O, no clock, no globals."""
