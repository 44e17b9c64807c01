"""Experiments of the papers, run again: one file each; adding one is a file, its test and a line here."""

from watersmeet.errors import InputError, did_you_mean
from watersmeet.reproduce import (
    pmjoin_example1,
    pmjoin_example2,
    pmjoin_fig5,
    pmjoin_fig6,
    pmjoin_fig7,
    pmjoin_fig8,
    pmjoin_fig9,
    pmjoin_fig10,
    pmjoin_fig11,
    rjoin_churn,
    rjoin_fig2,
    rjoin_fig3,
    rjoin_fig4,
    rjoin_fig5,
    rjoin_fig6,
    rjoin_fig7,
    rjoin_fig8,
    rjoin_fig9,
    semijoin_fig7,
    semijoin_fig8,
    semijoin_fig9,
    semijoin_table3,
)
from watersmeet.reproduce.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    pmjoin_example1.EXPERIMENT,
    pmjoin_example2.EXPERIMENT,
    pmjoin_fig5.EXPERIMENT,
    pmjoin_fig6.EXPERIMENT,
    pmjoin_fig7.EXPERIMENT,
    pmjoin_fig8.EXPERIMENT,
    pmjoin_fig9.EXPERIMENT,
    pmjoin_fig10.EXPERIMENT,
    pmjoin_fig11.EXPERIMENT,
    *semijoin_fig7.EXPERIMENTS,
    semijoin_table3.EXPERIMENT,
    semijoin_fig8.EXPERIMENT,
    semijoin_fig9.EXPERIMENT,
    rjoin_fig2.EXPERIMENT,
    rjoin_fig3.EXPERIMENT,
    rjoin_fig4.EXPERIMENT,
    rjoin_fig5.EXPERIMENT,
    rjoin_fig6.EXPERIMENT,
    rjoin_fig7.EXPERIMENT,
    rjoin_fig8.EXPERIMENT,
    rjoin_fig9.EXPERIMENT,
    rjoin_churn.EXPERIMENT,
)


def experiment_named(name: str) -> Experiment:
    """The experiment of a name."""
    found = next((one for one in EXPERIMENTS if one.name == name), None)
    if found is None:
        raise InputError(f"unknown experiment {name!r}; {did_you_mean(name, [one.name for one in EXPERIMENTS])}")
    return found
