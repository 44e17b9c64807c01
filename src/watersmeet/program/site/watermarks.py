"""How far the flows of a site have come, from those that arrive here and from what was made of them."""

from collections.abc import Mapping, Sequence

from watersmeet.program.operators import Form, Gather
from watersmeet.program.site.filing import Made
from watersmeet.program.site.inputs import low_watermark
from watersmeet.program.site.program import SiteProgram
from watersmeet.program.site.streams import clock_flow, ordered_flow
from watersmeet.program.storage.wire import UNKNOWN
from watersmeet.query.windows import LAST_US


def spread(program: SiteProgram, marks: Mapping[str, int]) -> dict[str, int]:
    """The watermark of every flow, from those that arrive here."""
    known = dict(marks)
    for stream in program.ordered:
        if stream in known:
            known[clock_flow(stream)] = known[ordered_flow(stream)] = known[stream]
    for part, operator in program.every_operator:
        made = [(operator, operator.out)]
        if isinstance(operator, Gather):
            made += zip(operator.semijoins, operator.reached, strict=True)
        for one, flow in made:
            reached, out = low_watermark(part, one, known), part.flow(flow)
            if reached > known.get(out, UNKNOWN):
                known[out] = reached
    return known


def paced(program: SiteProgram, marks: Mapping[str, int], made: Sequence[Made]) -> dict[str, int]:
    """Watermarks with the latest tuple of each flow that sets a pace."""
    known = dict(marks)
    for part in program.parts:
        for pace, flow in part.program.paces:
            name = part.flow(flow)
            latest = [s.max_ts for filed in made if filed.flow == name for s in filed.segments.values()]
            if flow.form is Form.INTERMEDIATE:  # where its windows end on their axis, which may be never
                latest = [min(place // len(part.join.scans), LAST_US) for place in latest]
            known[part.flow(pace)] = max((*latest, known.get(part.flow(pace), UNKNOWN)))
    return known
