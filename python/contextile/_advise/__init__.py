"""Set-ups of training jobs: engines' files read, and the search for the fastest set-up."""

from contextile._advise.advice import Advice, advise
from contextile._advise.flat_settings import flat_json, flat_toml, flat_yaml, flatten

__all__ = ["Advice", "advise", "flat_json", "flat_toml", "flat_yaml", "flatten"]
