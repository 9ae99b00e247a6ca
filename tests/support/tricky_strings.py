"""About 200 texts on which tokenizers tend to differ."""

from __future__ import annotations

import unicodedata

SPACES = ["\u00a0", "\u1680", "\u2003", "\u2009", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff"]
CONTROLS = [
    "\t",
    "\n",
    "\r",
    "\r\n",
    "\x00",
    "\x01",
    "\x07",
    "\x0b",
    "\x0c",
    "\x1b",
    "\x1f",
    "\x7f",
    "\x85",
    "\xad",
    "\ufffd",
]
WORDS = [
    "hello world",
    "Crème brûlée",
    "Ærøskøbing",
    "naïve façade",
    "ÀÉÎÕÜ àéîõü",
    "İstanbul ıssız IŞIK i̇",
    "Straße STRASSE ẞ",
]
SCRIPTS = [
    "Поезд пришёл в Тверь", "ЁЖИК и ёлка", "Ελληνικά ΆΈΉ ἄνθρωπος", "中文字符测试", "我爱Python编程", "日本語のテキスト", "カタカナ ﾊﾝｶｸ ｶﾞｷﾞ",
    "아침에 비가 내렸습니다", "한국어 Korean 섞어", "مرحبا بالعالم", "مُحَمَّد", "שלום עולם", "שָׁלוֹם", "हिन्दी भाषा", "क़ख़ग़", "ภาษาไทย ที่นี่",
    "Tiếng Việt có dấu", "ქართული ენა", "Հայերեն", "বাংলা", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒽𝒶𝓃𝒹", "㈱㌔㍍ Ⅷ ⅳ", "𠀀𠀁𠮷", "ꙋ ѣ ѳ",
]  # fmt: skip
EMOJI = ["😀", "👩‍👩‍👧‍👦 family", "👍🏽 ok", "❤️", "🇩🇪🇺🇸", "☃ snow ☃☃", "a😀b", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "✈️ ✈", "1️⃣"]
FORMS = [
    "ﬁne ﬂow oﬀice", "Ｆｕｌｌ　ｗｉｄｔｈ １２３", "½ ¾ ²³ ₄", "№ ™ ℡ ℃ Å Ω", "ǅ ŀ ŉ ſ", "… ‥ ‘quoted’ “double” «guillemets» —dash–", "x² ≠ y₁", "①②③",
    "﷽", "ﷲ", "ﻼ", "Ǖ Ṓ ǿ", "Ａ\u0301 ﾊﾟ", "Q\u0301 Ж\u0301", "e\u0301\u0301", "\u0301leading mark", "o\u0323\u0302 o\u0302\u0323",
    "ê\u0301 e\u0302\u0301", "α\u0313\u0345 ᾳ",
]  # fmt: skip
LAYOUT = [
    "", " ", "  ", "\t", "\n", " \n ", "\u00a0", "a", " a", "a ", " a ", "  a", "a  ", "a  b", "a   b", "  two  spaces  ", "tab\tseparated\ttext",
    "line\nbreak", "windows\r\nline\r\nbreak", "trailing newline\n", "\n\nleading newlines", " \t mixed \n white \r\n space ", "a \u00a0 b",
]  # fmt: skip
PUNCTUATION = [
    "don't can't I'm we'll you've he'd 'tis", "Hello, world! How are you?", "(a) [b] {c} <d>", "e.g., i.e., etc.", "a-b_c/d\\e", "...", "!!!???",
    "``quoted''", "''", "``", "$100.00 €5 £3", "50% off", "user@example.com", "https://example.com/path?q=1&r=2#f", "C++ C# .NET", "a,b;c:d", "~^|`",
    "▁", "a▁b", "▁▁a", "Ġ", "Ċ", "##ing", "@@ a@@ b", "</w>", "a</w>", "\\u0041", "<0x41>", '"', "'", ". ,", "a .b", "a. b",
]  # fmt: skip
DIGITS = [
    "0",
    "123",
    "1,000",
    "1,000,000,",
    "3.14159",
    "2024-01-31",
    "12:30",
    "1e-5",
    "x1y2z3",
    "007",
    "٠١٢٣",
    "१२३",
    "１，０００，",
    "9,",
]
SPECIALS = [
    "[MASK]", "a [MASK] b", "a[MASK]b", "[CLS] a [SEP]", "[PAD]", "[UNK]", "<mask>", "a <mask> b", "a<mask>.", "<s> a </s>", "<pad>", "<unk>",
    "<|endoftext|>", "a<|endoftext|>b", "<extra_id_0>", "a <extra_id_0> b <extra_id_1>", "<cls> <sep>", "<eop><eod>", "en_XX", "a en_XX b", "[mask]",
    "[ MASK ]", "<Mask>", "</s", "s>", "[unused1]", "<special1>", "NOTUSED", "<s>NOTUSED", "newtoken", "a newtoken b", "anewtokenb", "NewToken",
]  # fmt: skip
LONG = [
    "x" * 150,
    "ab" * 120,
    "word " * 60,
    "日本" * 80,
    "é" * 101,
    "pneumonoultramicroscopicsilicovolcanoconiosis",
    "a" * 100,
    "a" * 101,
]
CASES = ["MiXeD CaSe", "iPhone NASA McDonald", "ALL CAPS TEXT", "ǄǅǆǇ", "ΣΊΣΥΦΟΣ", "ÿŸ ß", "Kelvin K Å"]

TRICKY: list[str] = list(
    dict.fromkeys(
        [
            *LAYOUT, *WORDS, *SCRIPTS, *EMOJI, *FORMS, *PUNCTUATION, *DIGITS, *SPECIALS, *LONG, *CASES,
            *(f"a{space}b{space}" for space in SPACES), *(f"a{control}b {control} c" for control in CONTROLS),
            *(unicodedata.normalize("NFD", text) for text in (*WORDS, *SCRIPTS)),
        ]
    )
)  # fmt: skip
