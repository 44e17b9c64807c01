"""Experiments of the PMJoin paper."""

from watersmeet.reproduce.experiment import Experiment
from watersmeet.reproduce.pmjoin import example1, example2, fig5, fig6, fig7, fig8, fig9, fig10, fig11, fig11_computed

EXPERIMENTS: tuple[Experiment, ...] = (
    example1.EXPERIMENT,
    example2.EXPERIMENT,
    fig5.EXPERIMENT,
    fig6.EXPERIMENT,
    fig7.EXPERIMENT,
    fig8.EXPERIMENT,
    fig9.EXPERIMENT,
    fig10.EXPERIMENT,
    fig11.EXPERIMENT,
    fig11_computed.EXPERIMENT,
)
