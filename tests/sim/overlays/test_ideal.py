"""The ideal overlay: one hop to the node that a look at all identifiers names, whoever comes and goes."""

from random import Random

import pytest

from watersmeet.sim.overlays.ideal import Directory, IdealRouter
from watersmeet.sim.overlays.identifiers import SPACE
from watersmeet.sim.overlays.router import Arc


@pytest.mark.parametrize("seed", range(5))
def test_owner_arcs_and_successors_are_right_whoever_comes_and_goes(seed: int) -> None:
    random, directory = Random(seed), Directory()
    routers = [IdealRouter(directory, address, random.getrandbits(64)) for address in range(40)]
    arcs: dict[int, Arc] = {}
    for router in routers:

        def note(arc: Arc, address: int = router.address) -> None:
            arcs[address] = arc

        router.watch(note)
    for _ in range(200):
        router = random.choice(routers)
        if router.is_ready:
            random.choice([router.stop, router.leave])()
        else:
            router.start(None)
        up = sorted((each for each in routers if each.is_ready), key=lambda each: each.identifier)
        assert len(directory) == len(up)
        if not up:
            assert router.next_hop(5) is None
            continue
        target = random.getrandbits(64)
        owner = min(up, key=lambda each: (each.identifier - target) % SPACE)
        for each in routers:
            assert each.next_hop(target) == (None if each is owner else owner.address)
            following = sorted(
                (other for other in up if other is not each),
                key=lambda other: (other.identifier - each.identifier) % SPACE,
            )
            assert each.successors(4) == [other.address for other in following[:4]]
        for place, each in enumerate(up):
            assert arcs[each.address] == each.arc == (up[place - 1].identifier, each.identifier)


def test_identifiers_are_different_and_fit() -> None:
    directory = Directory()
    IdealRouter(directory, 1, 7).start(None)
    with pytest.raises(ValueError, match="same identifier: 7"):
        IdealRouter(directory, 2, 7).start(None)
    with pytest.raises(ValueError, match="64 bits"):
        IdealRouter(directory, 2, SPACE)
