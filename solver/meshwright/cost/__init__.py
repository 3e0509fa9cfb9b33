"""Bytes and seconds of plans: pure functions over numpy columns.

The same formula serves one plan (columns of length one) and a million skeletons.
"""
