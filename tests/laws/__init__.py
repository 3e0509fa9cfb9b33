"""Laws that hold for every spec, each held against fresh random ones.

`python -m tests.laws` draws new specs and prints what each law found; pytest runs the
same laws on a few specs that stay the same (`tests/laws/test_laws.py`).
"""
