"""Files of engines as pairs of keys and values."""

from __future__ import annotations

import pytest

from contextile import _core
from contextile._advise import flat_json, flat_toml, flat_yaml, flatten

pytest.importorskip("yaml", reason="PyYAML is not installed")


def test_values_become_texts_and_sections_prefixes():
    assert flat_toml('a = 1\n[b.c]\nd = [2, 4]\ne = true\nf = "x"') == [
        ("a", "1"),
        ("b.c.d", "2 4"),
        ("b.c.e", "true"),
        ("b.c.f", "x"),
    ]
    assert flat_json('{"a": [{"b": null}], "c": {}}') == [("a.0.b", "null")]


def test_yaml_is_read_like_the_others():
    text = "fsdp_config:\n  fsdp_version: 2\n  fsdp_offload_params: false\nseed: null\n"
    assert flat_yaml(text) == [
        ("fsdp_config.fsdp_version", "2"),
        ("fsdp_config.fsdp_offload_params", "false"),
        ("seed", "null"),
    ]


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (flat_toml, "a ="),
        (flat_json, "{"),
        (flat_json, "[1]"),
        (flat_json, "[" * 100_000),
        (flat_yaml, "a: [1"),
        (flat_yaml, "text"),
        (flat_yaml, "a: !!python/object/apply:os.getcwd []"),
        (flat_yaml, "a: &a\n  b: *a\n"),
    ],
)
def test_text_that_is_no_file_of_settings_is_refused(read, text):
    with pytest.raises(_core.InvalidArgument, match="settings: expected"):
        read(text)


def test_a_part_that_yaml_repeats_without_end_is_refused():
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}" for i in range(1, 40)]
    with pytest.raises(_core.InvalidArgument, match="at most 100000 values"):
        flat_yaml("\n".join(lines))


def test_deep_settings_are_refused():
    settings = 1
    for _ in range(100):
        settings = {"a": settings}
    with pytest.raises(_core.InvalidArgument, match="at most 64 levels"):
        flatten(settings)
