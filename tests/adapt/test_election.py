"""The switch by an elected coordinator: all nodes or none, whoever crashes, and as many messages as are sent."""

from random import Random

import pytest

from watersmeet.adapt.election import Ballot, GroupMember, announce, become_ready, hear, members, wait_over
from watersmeet.adapt.messages import Phase
from watersmeet.reproduce.adaptive.prototype import PrototypeSetup, run
from watersmeet.reproduce.adaptive.switching import NodeCrash, counted


def test_nobody_switches_before_all_are_ready_and_all_do_whatever_is_lost() -> None:
    """Messages come in any order or are lost, nodes announce themselves at any time, and one becomes ready late."""
    for seed in range(200):
        random = Random(seed)
        nodes = members("abcde"[: random.randint(2, 5)])
        waiting: list[Ballot] = []

        def take(step: "tuple[GroupMember, list[Ballot]]", nodes: dict[str, GroupMember] = nodes) -> None:
            nodes[step[0].name] = step[0]
            waiting.extend(step[1])  # noqa: B023

        late = random.choice(sorted(nodes))
        for name in sorted(nodes):
            if name != late:
                take(become_ready(nodes[name]))
        take(announce(nodes["a"]))
        for number in range(400):
            if number == 200:
                assert not any(node.switched for node in nodes.values()), f"seed {seed}: {late} is not ready"
                take(become_ready(nodes[late]))
            if waiting and random.random() < 0.7:
                letter = waiting.pop(random.randrange(len(waiting)))
                if random.random() < 0.7:
                    take(hear(nodes[letter.to], letter))
            else:
                take(wait_over(nodes[random.choice(sorted(nodes))]))
        for name in [*sorted(nodes), *sorted(nodes)]:  # nothing is lost any more, and each has waited long enough
            while waiting:
                letter = waiting.pop(0)
                take(hear(nodes[letter.to], letter))
            take(wait_over(nodes[name]))
        for letter in waiting:
            take(hear(nodes[letter.to], letter))
        assert all(node.switched for node in nodes.values()), f"seed {seed}"


@pytest.mark.parametrize("ways", [4, 8])
def test_without_crashes_a_switch_takes_five_messages_a_node(ways: int) -> None:
    found = run(PrototypeSetup(ways=ways, by_coordinator=True, end_ms=2_500), "CNU", 0)
    (switch,) = found.switches
    sent = counted(one for one in switch.messages if one.kind.phase is Phase.SYNCHRONISATION)
    others = ways - 1
    assert sent == {"election": others, "local-ready": 2 * others, "global-ready": 2 * others}
    assert found.answers == run(PrototypeSetup(ways=ways, end_ms=2_500), "CNU", 0).answers


def test_another_node_takes_over_from_a_coordinator_that_crashes() -> None:
    """At any time of the switch; those that ask again send more messages, and the new plan comes later."""
    usual = run(PrototypeSetup(by_coordinator=True, end_ms=2_500), "CNU", 0).switches[0]
    assert usual.done_ms is not None
    elections = set()
    for after_ms in range(0, 35, 5):
        crashes = (NodeCrash("s1", after_ms, 300),)
        found = run(PrototypeSetup(by_coordinator=True, crashes=crashes, end_ms=3_300), "CNU", 0)
        switch = found.switches[0]
        assert switch.done_ms is not None, f"after {after_ms} ms"
        elections.add(counted(switch.messages)["election"])
        assert switch.done_ms >= usual.done_ms
    assert min(elections) == 3 < max(elections), "it is elected anew where it is still needed"
