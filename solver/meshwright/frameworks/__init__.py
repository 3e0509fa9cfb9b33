"""Training frameworks: what each can launch, keeps in memory, and fuses.

Every module of this package except `base` is a framework. It defines one `FRAMEWORK`,
and its name is the one that a spec gives. `base` holds what frameworks share.
"""
