"""Define the rules of the Colossal Clean Crawled Corpus, C4 (Raffel et al., 2020, arXiv:1910.10683, section 2.2).

The rules were made for web pages. The rules for lines expect one paragraph per line: they remove headings, poems and hard-wrapped text,
whose lines do not end in punctuation. C4's list of offensive words is left out, as it removes medical texts and texts by and about
minorities (Dodge et al., 2021, arXiv:2104.08758). Repeated spans of three sentences are in `duplicate_spans`.
"""

from __future__ import annotations

import re
from itertools import islice

from pretune.text.corpus.cleaning.document_features import DocumentFeatures
from pretune.text.corpus.cleaning.rules import DocumentRule, LineRule, Rule
from pretune.text.corpus.ngram_hashes import WORD

FEWEST_WORDS_PER_LINE = 5
FEWEST_SENTENCES = 3
# Period, exclamation mark, question mark, ellipsis, and their counterparts in other scripts; closing quotation marks.
END_MARKS = tuple(".!?…。！？｡．؟۔।॥։።။" + "\"'”’“»›」』")
POLICY = re.compile("terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies", re.IGNORECASE)
JAVASCRIPT = re.compile("javascript", re.IGNORECASE)
LOREM_IPSUM = re.compile("lorem ipsum", re.IGNORECASE)


def _is_short(line: str) -> bool:
    return len(list(islice(WORD.finditer(line), FEWEST_WORDS_PER_LINE))) < FEWEST_WORDS_PER_LINE


def _has_few_sentences(document: DocumentFeatures) -> bool:
    return not document.has_sentences(FEWEST_SENTENCES)


C4_RULES: tuple[Rule, ...] = (
    LineRule("c4/end-punctuation", lambda line: not line.endswith(END_MARKS), "lines without punctuation at the end"),
    LineRule("c4/short-line", _is_short, f"lines of fewer than {FEWEST_WORDS_PER_LINE} words"),
    LineRule("c4/javascript", lambda line: bool(JAVASCRIPT.search(line)), "lines that contain “javascript”"),
    LineRule("c4/policy", lambda line: bool(POLICY.search(line)), "lines about cookies, privacy, or terms of use"),
    DocumentRule("c4/few-sentences", _has_few_sentences, f"documents of fewer than {FEWEST_SENTENCES} sentences"),
    DocumentRule("c4/lorem-ipsum", lambda d: bool(LOREM_IPSUM.search(d.text)), "documents that contain “lorem ipsum”"),
    DocumentRule("c4/curly-bracket", lambda d: "{" in d.text, "documents that contain “{”, as most code does"),
)
