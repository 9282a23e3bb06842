"""False alarms: a plain script that pauses as real ones do, under hang detection at its defaults."""
