"""Pipeline schedules: their memory, their time, and the order of their tasks.

A schedule is one module here and one entry of `plans/schedules/table.py`.
"""
