"""Logs of measured collectives, to which the links of a topology are fitted."""
