"""The file with the unit costs of this machine, which `watersmeet calibrate` writes and planners read."""

import json
import os
import platform
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from watersmeet.cost.costs import Units
from watersmeet.errors import InputError

_CURE = "run `watersmeet calibrate` to write it anew"


def default_units_path() -> Path:
    """Where the unit costs of this machine are kept."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache") / "watersmeet" / "units.json"


def save_units(path: Path, units: Units) -> None:
    """Write unit costs, with what they were measured on and when."""
    machine = {"processors": os.cpu_count(), "python": platform.python_version(), "pyarrow": pa.__version__}
    data = {"units": asdict(units), "machine": machine, "date": datetime.now(UTC).date().isoformat()}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    fresh.replace(path)


def load_units(path: Path) -> Units:
    """Unit costs that were written before."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["units"]
        return Units(**{item.name: _number(found[item.name]) for item in fields(Units)})
    except OSError as error:
        raise InputError(f"the unit costs in {path} cannot be read ({error.strerror}); {_CURE}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is damaged or is no file of unit costs; {_CURE}") from error


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("not a number")
    return float(value)
