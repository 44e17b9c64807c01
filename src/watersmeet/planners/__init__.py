"""Planners: functions from a query to a plan, in tuples; adding one is a file, its golden cases and a line here."""

from watersmeet.planners.local import local
from watersmeet.planners.sited import central

PLANNERS = (local,)
SITE_PLANNERS = (central,)  # for streams at several sites
