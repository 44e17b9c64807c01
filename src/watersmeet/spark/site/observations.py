"""What a site reports to others of what it observes, and takes from them: notes in the parcels of links."""

from collections.abc import Sequence

from watersmeet.program.site.agreement import Observed, unpack_notes
from watersmeet.program.site.ledger import SiteLedger
from watersmeet.program.storage.wire import UNKNOWN, ParcelIndex
from watersmeet.spark.site.idle import IdleStreams
from watersmeet.spark.site.state import SiteState


class SiteObservations:
    """The site's side of what sites report to each other, for whoever decides on plans."""

    def __init__(self, state: SiteState, idle: IdleStreams) -> None:
        self._state = state
        self._idle = idle

    def report(self, to: str, text: str) -> None:
        """Say something to another site; it goes with the next parcel."""
        state = self._state
        with state.lock:
            if not state.closing.is_set():
                state.checkpoint.commit(state.engine.report(state.ledger, to, text))

    def silent_s(self) -> dict[str, float]:
        """By other site: for how long it has taken nothing although something waits for it."""
        return self._state.links.silent_s()

    @property
    def reached_us(self) -> int | None:
        """The farthest event time that any stream is known here to have come to."""
        reached = self._idle.pace()
        return None if reached == UNKNOWN else reached


def hand_on(state: SiteState, parcels: Sequence[tuple[str, str, ParcelIndex]], before: SiteLedger) -> None:
    """Hand on what other sites have reported in parcels that were taken since a ledger."""
    observations, after = state.settings.observations, state.ledger
    for sender, _, parcel in parcels if observations is not None else ():
        if parcel.notes and before.received.get(sender, 0) < parcel.number <= after.received.get(sender, 0):
            for note in unpack_notes(parcel.notes):
                if isinstance(note, Observed) and observations is not None:
                    observations.reported(sender, note.text)
