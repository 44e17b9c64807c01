"""Planners: functions from a problem to the sub-plans of a plan, in tables; adding one is a file, its cases and a line.

`local` plans streams at one place; `sited` what needs no figures; `auto` names all others and takes the cheapest.
"""
