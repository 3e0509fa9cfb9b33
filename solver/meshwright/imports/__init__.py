"""Reads files of other tools: machines, fabrics, hosts, logs, launches and models.

`registry.py` names the kinds of files and the module of each; `read.py` reads one.
A machine becomes `machines/facts.py`, then a topology in `machines/graph.py`. A fabric
becomes levels, in `switch_levels.py`. A launch becomes `launches/launch.py`, and a plan
in `launches/plan.py`; a config.json of Hugging Face the fields of a model, in `hf.py`.

Whatever reads a text raises `SpecError` where it is too long or a value is none that
its option takes: with file, line, value and what is accepted. Docstrings name what is
refused besides.
"""
