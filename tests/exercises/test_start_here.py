"""The exercises of 00_start_here: a stub never passes, the solution does, wrong answers are told what is wrong."""

import pytest
import torch.distributed as dist

from hfscale.exercises import start_here
from hfscale.exercises.solutions import start_here as solutions

pytestmark = pytest.mark.usefixtures("no_leftovers")


def raises(rows):
    raise NotImplementedError


def only_dots(rows): ...


def only_a_docstring(rows):
    """Which rows?"""


def dots_returned(rows):
    share = rows // 2
    return ... if share else share


def nothing_returned(rows):
    return None


@pytest.mark.parametrize("stub", [raises, only_dots, only_a_docstring, dots_returned, nothing_returned])
def test_a_stub_neither_passes_nor_crashes(stub):
    result = start_here.check_my_rows(stub)
    assert result.done is None
    assert str(result).startswith("not attempted yet: fill in my_rows(rows)")


def test_the_solution_passes():
    assert str(start_here.check_my_rows(solutions.my_rows)).startswith("right: every row is read by exactly one rank")


def every_other(rows):
    return range(dist.get_rank(), rows, dist.get_world_size())


def test_another_fair_share_passes_too():
    assert start_here.check_my_rows(every_other).done


def everything(rows):
    return list(range(rows))


def made_for_two(rows):
    return list(range(4)) if dist.get_rank() == 0 else list(range(4, 8))


def overlapping(rows):
    first = dist.get_rank() * (rows // dist.get_world_size())
    return list(range(first, min(first + rows // dist.get_world_size() + 1, rows)))


def leaves_the_last_row(rows):
    mine = solutions.my_rows(rows)
    return mine[:-1] if dist.get_rank() == dist.get_world_size() - 1 else mine


def unequal(rows):
    return list(range(1)) if dist.get_rank() == 0 else list(range(1, rows))


def counts_from_one(rows):
    return [row + 1 for row in solutions.my_rows(rows)]


def a_number(rows):
    return rows // dist.get_world_size()


def forgets_to_return(rows):
    list(range(rows // dist.get_world_size()))


def a_typo(rows):
    return list(range(row))  # noqa: F821 - the learner's mistake


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (everything, "every rank reads the same rows, [0, 1, 2, 3, 4, 5, 6, 7]: ask torch.distributed for the rank"),
        (made_for_two, "with 3 ranks and 12 rows, row 4 is read 2 times"),
        (overlapping, "row 4 is read 2 times: it would weigh more"),
        (leaves_the_last_row, "nobody reads row 7"),
        (unequal, "the ranks read 1, 7 rows: equal shares"),
        (counts_from_one, "there is no row 8: rows count from 0 to 7"),
        (forgets_to_return, "forgets_to_return returned nothing: is there a return at its end?"),
        (a_number, "my_rows returned 4: expected a list of row numbers"),
        (a_typo, "NameError: name 'row' is not defined. In line"),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong(answer, sentence):
    result = start_here.check_my_rows(answer)
    assert result.done is False
    assert str(result).startswith("not yet: ") and sentence in result.message


@pytest.mark.parametrize("batch", [solutions.global_batch, 18])
def test_a_legal_batch_passes(batch):
    result = start_here.check_global_batch(batch)
    assert result.done and f"= {batch} rows in one optimizer step" in result.message


@pytest.mark.parametrize(
    ("batch", "done", "sentence"),
    [
        (..., None, "choose a global batch"),
        (None, None, "choose a global batch"),
        (16, False, "must be a multiple of 6, such as 12 or 18"),
        (15, False, "cannot be shared by 3 data ranks"),
        (6, False, "at least 10 were asked for"),
        ("12", False, "expected a whole number"),
    ],
)
def test_other_batches_do_not(batch, done, sentence):
    result = start_here.check_global_batch(batch)
    assert result.done is done and sentence in result.message


def test_the_result_shows_as_html_too():
    result = start_here.check_global_batch(6)
    assert "<strong>not yet</strong>" in result._repr_html_() and result.message in result._repr_html_()
