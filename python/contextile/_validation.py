"""Holds predictions against measured times."""

from __future__ import annotations

import os

from contextile import _core
from contextile._core import Cluster, Validation
from contextile._planning import Progress, cluster_of, progress_hook


def validate(
    path: str | os.PathLike[str],
    *,
    cluster: Cluster | str | os.PathLike[str] | None = None,
    progress: Progress = False,
) -> Validation:
    """Predicts plans and steps whose times were measured, and compares the two times of all rows.

    It does what ``contextile validate`` does, releases the interpreter lock, and ends on Ctrl-C.

    Parameters
    ----------
    path : str or path
        A CSV file of measured times, ``"-"`` for standard input. docs/predict.md describes its
        columns. It has at most 20,000 rows.
    cluster : Cluster or str, optional
        The machine to predict on, instead of each row's cluster, kernel and engine. Rows of other
        numbers of nodes and devices are not predicted.
    progress : bool or function
        As for ``plan``.

    Returns
    -------
    Validation
        ``rows`` with their times in milliseconds and their ratios, ``methods`` with the median and
        the furthest ratio, and ``experiments`` with Kendall's tau. Rows that cannot be predicted,
        for example because no strategy does the same, have a ``reason`` instead.

    Raises
    ------
    InvalidArgument
        A row is malformed: the text says its line and column, what was expected and what was
        found. Or options of a strategy, a mask or the cluster are bad.
    IoError
        The file, or a cluster file that a row names, cannot be read.
    CheckFailed
        A plan does not verify.

    Examples
    --------
    >>> import contextile as ct
    >>> validation = ct.validate("rows.csv")  # doctest: +SKIP
    >>> [method.median_ratio for method in validation.methods]  # doctest: +SKIP
    [0.66, 0.905]
    """
    machine = None if cluster is None else cluster_of(cluster)
    with progress_hook(progress) as hook:
        return _core.validate(path, machine, hook)
