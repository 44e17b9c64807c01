"""Planners: functions from a query to a plan, in one tuple; adding one is a file, its golden cases and a line here."""

from watersmeet.planners.local import local

PLANNERS = (local,)
