"""Files of training engines, read for ``contextile advise``."""

from contextile.advise.flat_settings import flat_json, flat_toml, flat_yaml, flatten

__all__ = ["flat_json", "flat_toml", "flat_yaml", "flatten"]
