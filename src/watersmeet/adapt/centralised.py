"""Centralised update of node operator sets, CNU (adaptive paper, algorithm 2, and section 4.3 for its windows)."""

from collections.abc import Mapping

from watersmeet.adapt.messages import MessageKind, Modification, Sent, WindowMove, over_links
from watersmeet.adapt.node_operators import operator_sets, windows_of
from watersmeet.adapt.sequences import ExecutionPlan, Setting, StreamFigures, generate


def update_centrally(
    setting: Setting,
    figures: Mapping[str, StreamFigures],
    current: ExecutionPlan,
    *,
    changed: str,
    coordinator: str,
) -> Modification:
    """The plan for new figures, one stream of which has reported a change to the coordinator."""
    plan = generate(setting, figures)
    old, new = (operator_sets(execution_plan, setting.homes, coordinator) for execution_plan in (current, plan))
    affected = frozenset(node for node in new if new[node] != old[node])
    messages = [Sent(MessageKind.REPORT, setting.homes[changed], coordinator)]
    messages += [Sent(MessageKind.OPERATORS, coordinator, node) for node in sorted(affected)]
    had = {node: windows_of(old[node]) for node in old}
    moves = []
    for node in sorted(affected):
        for stream in sorted(windows_of(new[node])):
            if stream not in had[node]:
                holder = holder_of(stream, had, setting.homes[stream])
                # The coordinator names the holder with the operators; table 3 counts one request a window that moves.
                messages.append(Sent(MessageKind.WINDOW_REQUEST, node, holder))
                moves.append(WindowMove(stream, holder, node))
    groups = (affected,) if affected else ()
    return Modification(plan, over_links(messages), tuple(moves), groups)


def holder_of(stream: str, had: Mapping[str, frozenset[str]], home: str) -> str:
    """The node to copy a window from: its home if that keeps it, else the first that does."""
    return min((node for node in had if stream in had[node]), key=lambda node: (node != home, node), default=home)
