"""Pipeline schedules: what each holds, how long it takes, and its order of tasks.

A schedule is one module here and one entry of `schedules/table.py`.
"""
