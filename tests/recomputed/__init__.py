"""A plan's bytes and seconds, worked out again: slowly, and by plain loops.

It reads a spec, a plan and the efficiencies as data, and shares nothing with the
formulas of `meshwright.cost`: each file goes through layers, stages, ranks, messages or
micro-batches one by one, as the papers have them. `test_recomputed.py` holds
random plans against it. Where the product does what a reader would not expect, the
reason stands here too.
"""
