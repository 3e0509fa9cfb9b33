"""What each training framework can launch, keeps in memory and fuses.

Every module of this package but `base` is a framework: it holds one `FRAMEWORK`, and
its name is the one that a spec gives. `base` holds what they are made of.
"""
