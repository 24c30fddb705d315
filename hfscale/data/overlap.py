"""Copied text between what is trained on and what is held out makes a model look better than it is: how it is found."""

RUN = 12  # words: so many in a row are a quotation, fewer may be a turn of phrase


def word_runs(text: str) -> set[tuple[str, ...]]:
    """All runs of RUN words in a row. Two texts whose sets meet share a quotation."""
    words = text.split()
    return {tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1)}
