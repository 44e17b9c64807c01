"""Experiments of the adaptive paper."""

from watersmeet.reproduce.adaptive import cutover, fig4, fig5, sensitivity, table3
from watersmeet.reproduce.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    fig4.EXPERIMENT,
    fig5.EXPERIMENT,
    table3.EXPERIMENT,
    sensitivity.EXPERIMENT,
    cutover.EXPERIMENT,
)
