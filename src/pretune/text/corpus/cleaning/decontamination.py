"""Remove paragraphs that contain an n-gram of a benchmark's texts (after Brown et al., 2020, arXiv:2005.14165, appendix C).

For GPT-3, the n-gram was removed with 200 characters around it. Here, whole paragraphs are removed, so that no text starts within a
sentence.
"""

from __future__ import annotations

import numpy as np

from pretune.text.corpus.cleaning.document_features import DocumentFeatures
from pretune.text.corpus.cleaning.interval_cover import cover
from pretune.text.corpus.ngram_hashes import NgramSet, find_words


def contaminated_lines(document: DocumentFeatures, ngrams: NgramSet) -> list[bool]:
    """Return, for each line of a document, whether it must be removed because its paragraph contains benchmark text.

    `ngrams` are the n-grams of the benchmark. A paragraph contains benchmark text if it contains at least one word of
    an occurrence of such an n-gram, even if the occurrence begins or ends in another paragraph.
    """
    lines = document.text.split("\n")
    removed = np.zeros(len(lines), dtype=bool)
    numbers = document.word_hashes
    places = ngrams.find(numbers)
    if not any(map(len, places.values())):
        return removed.tolist()
    blank = np.array([not line.strip() for line in lines])
    paragraph = np.cumsum(blank & ~np.append(True, blank[:-1]))  # of each line; a blank line belongs to the next one
    words = np.repeat(np.arange(len(lines)), [len(find_words(line)) for line in lines])  # line of each word
    left = np.arange(len(words))
    # Paragraphs that become neighbors may have an n-gram together.
    while any(map(len, places.values())):
        covered = np.zeros(len(left), dtype=bool)
        for length, starts in places.items():
            covered |= cover(starts, length, len(left))
        removed |= np.isin(paragraph, paragraph[words[left[covered]]])
        left = left[~removed[words[left]]]
        places = ngrams.find(numbers[left])
    return removed.tolist()
