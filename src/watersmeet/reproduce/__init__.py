"""Experiments of the papers, run again: one file each; adding one is a file, its test and a line here."""

from watersmeet.errors import InputError, did_you_mean
from watersmeet.reproduce import adaptive, pier, pmjoin, rjoin, semijoin, systems
from watersmeet.reproduce.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    *pmjoin.EXPERIMENTS,
    *semijoin.EXPERIMENTS,
    *rjoin.EXPERIMENTS,
    *adaptive.EXPERIMENTS,
    *pier.EXPERIMENTS,
    *systems.EXPERIMENTS,
)


def experiment_named(name: str) -> Experiment:
    """The experiment of a name."""
    found = next((experiment for experiment in EXPERIMENTS if experiment.name == name), None)
    if found is None:
        known = [experiment.name for experiment in EXPERIMENTS]
        raise InputError(f"unknown experiment {name!r}; {did_you_mean(name, known)}")
    return found
