"""The diff of two training steps, made from the one source."""

import ast
import inspect
import textwrap

import pytest

from hfscale import HfscaleError
from hfscale.display.step_diff import specialised, step_diff, step_source

SOURCE = """\
def step(model, strategy):
    # forward
    loss = model()

    if strategy == "ddp":  # only then
        # why
        average(model)
        if model.big:
            average_again(model)
    loss.backward()
    if strategy == "fsdp":
        gather(model)
    if other == "ddp":
        stays(model)
"""


def test_the_branch_of_the_strategy_is_kept_one_level_further_left():
    assert specialised(SOURCE, "ddp") == (
        "def step(model, strategy):\n    # forward\n    loss = model()\n\n    # why\n    average(model)\n"
        '    if model.big:\n        average_again(model)\n    loss.backward()\n    if other == "ddp":\n'
        "        stays(model)\n"
    )


def test_the_branches_of_the_others_are_dropped():
    source = specialised(SOURCE, "single")
    assert "average" not in source and "gather" not in source and "stays" in source and "# forward" in source


def test_an_else_is_refused():
    with pytest.raises(HfscaleError, match="must stand alone, without: else:"):
        specialised('def f():\n    if strategy == "ddp":\n        a()\n    else:\n        b()\n', "ddp")


def test_ddp_differs_from_one_device_by_the_averaging_alone():
    diff = step_diff("single", "ddp")
    assert diff.added == ["        average_gradients(model)"] and diff.removed == []
    assert len(diff.lines) <= 15
    assert str(diff).startswith("--- single\n+++ ddp\n@@")


def test_the_other_direction_removes_it():
    assert step_diff("ddp", "single").removed == ["        average_gradients(model)"]


def test_a_step_does_not_differ_from_itself():
    assert str(step_diff("ddp", "ddp")) == "The steps of ddp and ddp are the same."


def test_nothing_changes_but_the_branches():
    """Each specialised source is Python, and no line is in it that is not in by_hand.py."""
    from hfscale.training import by_hand

    lines = {line.strip() for line in inspect.getsource(by_hand.train).splitlines()}
    for strategy in ("single", "ddp", "fsdp"):
        source = step_source(strategy)
        ast.parse(textwrap.dedent(source))
        assert {line.strip() for line in source.splitlines()} <= lines
        assert "if strategy ==" not in source


def test_html_says_added_with_a_sign_and_escapes():
    shown = step_diff("single", "ddp")._repr_html_()
    assert ">+        average_gradients(model)</span>" in shown
    assert "<pre>" in shown and shown.count("<span") == shown.count("</span>")


def test_an_unknown_strategy_is_refused():
    with pytest.raises(HfscaleError, match=r"by_hand\.py has no step for 'pp'"):
        step_diff("single", "pp")
