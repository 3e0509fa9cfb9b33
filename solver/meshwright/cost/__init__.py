"""Bytes and seconds of plans, as pure functions over numpy columns.

The same formula serves one plan, in columns of length one, and a million skeletons.
"""
