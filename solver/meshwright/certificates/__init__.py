"""Certificates that others can check: groups of skeletons that leave no room.

    domain        the values of every decision, and the rules that refuse some
    survey        what refuses each legal skeleton: memory, or a bound on its time
    cover         skeletons as a tree of decisions with few leaves
    certificate   the claims of an answer, and the file

The format is in `docs/certificates.md`; `meshwright_verify` reads it and shares no code
with this.
"""
