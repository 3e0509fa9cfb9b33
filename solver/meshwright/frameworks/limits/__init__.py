"""The rules of each framework, with the files and versions in which they were read.

A module holds the rules of one framework: `DEGREE_RULES` need nothing but the degrees,
`PLAN_RULES` see whole skeletons, and `OWN_WORDS` says how the framework itself puts
the rules that every plan keeps.
"""
