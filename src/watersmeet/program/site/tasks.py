"""How parallel work is handed in to the engine."""

from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
RunTasks = Callable[[Callable[[int], list[Result]], int, int], list[Result]]  # a task, how often, over how many rows
