"""Systems beside each other: no paper has this comparison."""

from watersmeet.reproduce.experiment import Experiment
from watersmeet.reproduce.systems import comparison

EXPERIMENTS: tuple[Experiment, ...] = (comparison.EXPERIMENT,)
