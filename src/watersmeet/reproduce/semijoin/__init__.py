"""Experiments of the semijoin paper."""

from watersmeet.reproduce.experiment import Experiment
from watersmeet.reproduce.semijoin import fig7, fig8, fig9, fig10, fixed_delta, table3, table3_as_written

EXPERIMENTS: tuple[Experiment, ...] = (
    *fig7.EXPERIMENTS,
    table3.EXPERIMENT,
    fig8.EXPERIMENT,
    fig9.EXPERIMENT,
    *table3_as_written.EXPERIMENTS,
    fig10.EXPERIMENT,
    fixed_delta.EXPERIMENT,
)
