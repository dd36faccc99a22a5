"""Strings that a tokenizer may get wrong, for make_golden.py and differential.py."""

import random
import unicodedata

CRAFTED = [
    "", " ", "  ", "   a", "\n", "\r\n", "\n\n\n", " \n ", "\t\tx", "a  b   c    d", "x \n\n y\r\n\r\nz ",
    "Hello! 毕老师！1 + 1 = 2 ĠÑĤÐ²ÑĬÑĢ", "Hello, world!", "don't I'LL we've 'tis", "naïve café résumé",
    "1234567890", "3.14159e-10", "12 345,678", "٣٤٥ ①②③ Ⅷ ½ ५६७", "x²+y³=z⁴", "0x1F 0b1010 1_000",
    "The quick brown fox jumps over the lazy dog.", "Die Straße über den Fluß; Öl, Ärger",
    "Привет, мир! Как дела?", "Γειά σου Κόσμε", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया",
    "สวัสดีชาวโลก", "안녕하세요 세계", "こんにちは世界、カタカナ。", "你好，世界！今天是2024年3月15日。",
    "龥龦一丁㐀𠀀", "ゟ゠ヿ㇀", "xin chào thế giới", "İstanbul ığüşöç", "ﬁ ﬂ ſ ẞ",
    "😀😃 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 ❤️", "e\u0301 a\u0308 \u0301start", "\u200bzero\u200dwidth\ufeffbom",
    "\u00a0nbsp\u2003em\u3000ideo\u2028line\u2029para\u0085nel\u180emvs\u000bvt\u000cff",
    "\u0000\u0001\u001f\u007f", "\u0378\ufffe\uffff\U0010ffff\ue000", "\U0001fae0\U0001f9ff",
    "def f(x):\n    return x**2  # square\n\n\nclass A:\n\tpass\n",
    "#include <vector>\nint main() { std::cout << \"hi\\n\"; return 0; }", "a->b::c[d]{e}(f)&&g||!h",
    "SELECT * FROM t WHERE a='b' AND c<>5;--x", "<div class=\"a\">&nbsp;</div>", "{\"k\": [1, 2.5, null]}",
    "https://example.com/a?b=c&d=%20#e", "user@example.org", "C:\\path\\to\\file", "~/.bashrc $HOME `ls`",
    "!@#$%^&*()_+-=[]{}|;':\",./<>?", "...!!!???", "---===___", "«»“”‘’–—…", "€£¥₹", "+−×÷≠≤",
    "!a @b #c ^d `e ~f |g", " !x  !x", "a\u0301\u0302\u0303", "\u0300\u0301", "_foo __bar__", "'s 't 'S",
    "<｜User｜>hi<｜Assistant｜></think>", "<｜begin▁of▁sentence｜>x<｜end▁of▁sentence｜>", "<think>a</think>b",
    "<｜User｜", "<｜｜User｜>", "<<think>>", "</think></think>", "<｜User｜><｜User｜> <｜User｜>",
    "a <｜Assistant｜>\n\n</think> b", "<｜▁pad▁｜><｜fim▁hole｜>", "<｜place▁holder▁no▁0｜><｜place▁holder▁no▁10｜>",
    "<|im_start|>", "[INST]", "<s></s>", "a" * 300, "ab" * 200, " " * 300, "\n" * 100, "=" * 200,
    "1" * 100, "，" * 50, "中" * 120, "😀" * 40, " \n" * 50, ("x" + " " * 20) * 5, "aA1!" * 50, "\t \t \n\t ",
]

SPECIALS = ["<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>",
            "<｜▁pad▁｜>", "<｜tool▁sep｜>", "<｜place▁holder▁no▁12｜>", "<｜", "｜>", "<", ">",
            "<|user|>", "<|assistant|>", "[gMASK]", "<sop>", "/nothink", "<tool_call>", "</arg_value>", "<|"]
SPACES = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u0085", "\u180e", "\u200b", " \n", "\n "]
# First and last code point of stretches to draw characters from.
BLOCKS = [(0x20, 0x7e)] * 6 + [
    (0x00, 0x7f), (0xa0, 0x17f), (0x180, 0x24f), (0x300, 0x36f), (0x370, 0x3ff), (0x400, 0x4ff),
    (0x590, 0x5ff), (0x600, 0x6ff), (0x900, 0x97f), (0xe00, 0xe7f), (0x1100, 0x11ff), (0x1e00, 0x1eff),
    (0x2000, 0x206f), (0x2070, 0x20cf), (0x2100, 0x218f), (0x2190, 0x22ff), (0x2460, 0x24ff),
    (0x3000, 0x30ff), (0x4e00, 0x9fff), (0x4e00, 0x4fff), (0xac00, 0xd7a3), (0xe000, 0xe0ff),
    (0xfe00, 0xfeff), (0xff00, 0xffef), (0x1d400, 0x1d7ff), (0x1f300, 0x1faff), (0x20000, 0x2a6df),
    (0x0, 0x10ffff)]


def random_char(rng):
    while True:
        first, last = rng.choice(BLOCKS)
        code = rng.randint(first, last)
        if not 0xD800 <= code <= 0xDFFF:
            return chr(code)


def random_string(rng):
    """A mix of words, digits, spaces, punctuation, added tokens, and characters of one block or any."""
    pieces = []
    for _ in range(rng.randint(1, 12)):
        kind = rng.random()
        if kind < 0.25:
            words = rng.choice(CRAFTED).split(" ")
            pieces.append(rng.choice(words))
        elif kind < 0.35:
            pieces.append("".join(rng.choice("0123456789") for _ in range(rng.randint(1, 7))))
        elif kind < 0.50:
            pieces.append(rng.choice(SPACES) * rng.randint(1, 3))
        elif kind < 0.58:
            pieces.append("".join(rng.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") for _ in range(rng.randint(1, 4))))
        elif kind < 0.64:
            pieces.append(rng.choice(SPECIALS))
        elif kind < 0.74:
            pieces.append("".join(rng.choice("abcdefghijklmnopqrstuvwxyzETAOIN") for _ in range(rng.randint(1, 15))))
        elif kind < 0.90:
            first, last = rng.choice(BLOCKS[6:-1])
            pieces.append("".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 6))))
        else:
            pieces.append("".join(random_char(rng) for _ in range(rng.randint(1, 6))))
    return "".join(pieces)


def random_strings(count, seed):
    rng = random.Random(seed)
    return [random_string(rng) for _ in range(count)]


def each_character():
    """Every code point, alone between letters, digits, spaces and punctuation."""
    for code in range(0x110000):
        if not 0xD800 <= code <= 0xDFFF:
            c = chr(code)
            yield f"a{c}b {c}{c}1{c}.{c} \n{c}"


def describe(code):
    return f"U+{code:04X} {unicodedata.name(chr(code), '?')}"
