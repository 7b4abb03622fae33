"""The search for the fastest set-up of a training job, as ``contextile advise`` makes it."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contextile import _core
from contextile._advise.flat_settings import flat_json, flat_toml, flat_yaml

_STRATEGIES = ("magi", "distca", "fcp")


class Advice:
    """The answer of :func:`advise`. Every time and byte in it is predicted.

    ``str`` of it is what ``contextile advise`` prints, and notebooks show it as tables.

    Attributes
    ----------
    engines : list of TrainingSetup
        The set-ups that engines have, fastest first.
    own : list of TrainingSetup
        Those with what no engine has: Contextile's plans and its packing by work.
    """

    def __init__(self, searched: _core.SearchedJob, engine: str | None) -> None:
        self._searched = searched
        self._engine = engine

    @property
    def engines(self) -> list[_core.TrainingSetup]:
        return list(self._searched.engines)

    @property
    def own(self) -> list[_core.TrainingSetup]:
        return list(self._searched.own)

    def to_dict(self) -> dict[str, Any]:
        """Returns the answer as the dict of ``contextile advise --json`` (docs/cli.md)."""
        answer: dict[str, Any] = json.loads(self._searched.json())
        return answer

    def flags(self, engine: str) -> str:
        """Returns the flags of the fastest set-up that an engine can run.

        Parameters
        ----------
        engine : str
            ``"megatron"``, ``"torchtitan"``, ``"trl"``, ``"deepspeed"`` or ``"contextile"``.

        Raises
        ------
        InvalidArgument
            The engine is unknown, or can run none of the set-ups.
        """
        setups = self.own if engine == "contextile" else self.engines
        problem = "nothing fits the memory"
        for setup in setups:
            found = _core.engine_problem(setup, engine)
            if found is None:
                searched = self._searched
                flags, script = _core.engine_flags(
                    setup, engine, searched.has_experts, searched.gradient_overlap
                )
                return flags + script
            problem = found
        raise _core.InvalidArgument(f"flags: expected a set-up that runs, found none: {problem}")

    def __str__(self) -> str:
        return self._searched.text(self._engine)

    def __repr__(self) -> str:
        verdict = self.to_dict()["verdict"]
        return f"<Advice: {verdict}>"

    def _repr_html_(self) -> str:
        answer = self.to_dict()
        parts = [f"<p><b>{html.escape(answer['verdict'])}</b></p>"]
        if "now" in answer:
            parts.append(_table("now", [answer["now"]]))
        parts.append(_table("set-ups that the engines have", answer["engines"]))
        parts.append(_table("the same with contextile's plans", answer["own"]))
        parts.append("<p>All times and bytes are predicted.</p>")
        return "".join(parts)


def _table(title: str, setups: Sequence[dict[str, Any]]) -> str:
    if not setups:
        return ""
    head = "".join(
        f"<th>{name}</th>" for name in (title, "step, s", "tokens/s", "GB", "device-h per 1e9")
    )
    rows = "".join(
        f"<tr><td>{html.escape(one['text'])}</td><td>{one['step_s']:.4g}</td>"
        f"<td>{one['tokens_per_s']:.0f}</td><td>{one['memory_bytes'] / 1e9:.1f}</td>"
        f"<td>{one['device_hours_per_billion_tokens']:.2f}</td></tr>"
        for one in setups
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _read_now(now: str | os.PathLike[str], num_gpus: int) -> _core.ReadSetup:
    path = Path(now)
    suffix = path.suffix.lower()
    is_path = isinstance(now, os.PathLike) or suffix in (".toml", ".json", ".yaml", ".yml", ".sh")
    if not is_path:
        return _core.read_megatron_arguments(str(now), num_gpus)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _core.IoError(f"now: expected a readable file of text, found {error}") from error
    if suffix == ".toml":
        return _core.read_engine_setup("torchtitan", flat_toml(text), num_gpus)
    if suffix == ".json":
        return _core.read_engine_setup("deepspeed", flat_json(text), num_gpus)
    if suffix not in (".yaml", ".yml"):
        return _core.read_megatron_arguments(text, num_gpus)
    flat = flat_yaml(text)
    # accelerate's files say so; those of Megatron-Bridge have Megatron's names.
    keys = {key.split(".")[0] for key, _ in flat}
    is_accelerate = keys & {"compute_environment", "distributed_type", "parallelism_config"}
    return _core.read_engine_setup("trl" if is_accelerate else "megatron", flat, num_gpus)


def _lengths_of(lengths: Any, column: str) -> list[int]:
    if not isinstance(lengths, (str, os.PathLike)):
        return [int(length) for length in lengths]
    path = Path(lengths)
    if path.is_dir() or path.suffix in (".parquet", ".arrow"):
        return _lengths_of_table(path, column)
    return _core.read_lengths(str(path), length_field=column)


def _lengths_of_table(path: Path, column: str) -> list[int]:
    """Reads lengths of parquet and arrow files, from a column of lengths or of lists of tokens."""
    try:
        from pyarrow import compute, dataset, types  # type: ignore[import-untyped]
    except ImportError:
        raise _core.InvalidArgument(
            f"lengths: expected pyarrow for {path}, found it is not installed"
        ) from None
    if not path.exists():
        raise _core.IoError(f"lengths: expected a file or folder, found none at {path}")
    files = [path]
    if path.is_dir():
        files = sorted(one for one in path.rglob("*") if one.suffix in (".parquet", ".arrow"))
        if not files:
            raise _core.InvalidArgument(
                f"lengths: expected files .parquet or .arrow in {path}, found none"
            )
    found: list[int] = []
    for file in files:
        kind = "parquet" if file.suffix == ".parquet" else "ipc"
        try:
            whole = dataset.dataset(str(file), format=kind)
            names = whole.schema.names
        except (OSError, ValueError):
            if kind == "parquet":
                raise
            whole, names = _stream_of(file)
        if column not in names:
            raise _core.InvalidArgument(
                f"lengths: expected a column {column!r} in {file}, found {', '.join(names)}"
            )
        values = whole.to_table(columns=[column]) if hasattr(whole, "to_table") else whole
        values = values.column(column)
        if types.is_list(values.type) or types.is_large_list(values.type):
            values = compute.list_value_length(values)
        if not types.is_integer(values.type) or values.null_count:
            raise _core.InvalidArgument(
                f"lengths: expected whole numbers or lists of tokens in column {column!r} of "
                f"{file}, found {values.type}"
                + (f" with {values.null_count} nulls" if values.null_count else "")
            )
        found += values.to_pylist()
    return found


def _stream_of(file: Path) -> tuple[Any, list[str]]:
    """Reads an arrow file that is a stream, as the library datasets writes them."""
    import pyarrow

    try:
        with pyarrow.memory_map(str(file)) as source:
            table = pyarrow.ipc.open_stream(source).read_all()
    except (OSError, ValueError) as error:
        raise _core.InvalidArgument(f"lengths: expected an arrow file, found {error}") from error
    return table, table.schema.names


def advise(
    lengths: Any,
    *,
    model: str = "llama-3-8b",
    gpus: str = "32xh100",
    now: str | os.PathLike[str] | None = None,
    engine: str | None = None,
    measured_s: float | None = None,
    price: float = 0.0,
    mask: str | Sequence[str] | None = None,
    tokens: int = 0,
    step_tokens: int = 0,
    seconds: float = 15.0,
    best: int = 5,
    seed: int = 0,
    plans: Sequence[str] = _STRATEGIES,
    length_column: str = "length",
) -> Advice:
    """Finds the set-ups of a training job that are predicted to be fastest.

    Parameters
    ----------
    lengths : sequence of int, str or path
        Lengths of documents, in tokens; or a file of them, as ``contextile advise`` reads it; or a
        file or folder of parquet or arrow (a data set of Hugging Face).
    model : str
        A preset, a ``config.json`` of Hugging Face, or a folder with one.
    gpus : str
        ``"64xh100"``, or a cluster as ``Cluster.load`` takes it.
    now : str or path, optional
        The set-up of today: arguments of Megatron-LM, or a file: ``.toml`` of torchtitan, ``.yaml``
        of accelerate or Megatron-Bridge, ``.json`` of DeepSpeed, anything else a script with
        Megatron-LM's arguments.
    engine : str, optional
        Searches what this engine can run, and shows its flags.
    measured_s : float, optional
        A measured step of ``now``, s. The share of the peak outside attention is fitted to it.
    price : float
        Of a device-hour.
    mask : str or sequence of str, optional
        ``"SPEC"`` or ``"SPEC@LAYERS"`` as ``--mask`` takes them. By default that of the model's
        file, or causal.
    tokens, step_tokens : int
        Tokens of a micro-batch of one replica, and of a step; 0: those of ``now``, or what holds
        the longest document, and 4 Mi.
    seconds : float
        Of search; 0: no limit.
    best : int
        Set-ups of each list.
    seed : int
        Of the order of documents.
    plans : sequence of str
        Strategies to search in place of an engine's exchange.
    length_column : str
        The field or column with lengths, or with lists of tokens.

    Returns
    -------
    Advice

    Raises
    ------
    InvalidArgument
        Settings that may change time or memory and are not understood, each by its name; bad
        lengths, models and clusters.
    IoError
        A file cannot be read.

    Examples
    --------
    >>> import contextile as ct
    >>> advice = ct.advise([120_000, 3_000, 800] * 50, gpus="8xh100", seconds=0)
    >>> advice.engines[0].cp
    4
    """
    if measured_s is not None and now is None:
        raise _core.InvalidArgument("measured_s: expected now, the set-up measured, found none")
    read = None if now is None else _read_now(now, _core.num_gpus_of(gpus))
    masks = [mask] if isinstance(mask, str) else list(mask or ())
    searched = _core.search_setups(
        lengths=_lengths_of(lengths, length_column),
        model=os.fspath(model),
        gpus=gpus,
        masks=masks,
        tokens=tokens,
        step_tokens=step_tokens,
        now=read,
        measured_us=None if measured_s is None else 1e6 * measured_s,
        engine=engine,
        price=price,
        seconds=seconds,
        best=best,
        seed=seed,
        strategies=list(plans),
    )
    return Advice(searched, engine)
