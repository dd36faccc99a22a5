#!/usr/bin/env python3
"""Compares Weft's tokenizer with Hugging Face `tokenizers` on many strings.

    differential.py --tool build/bin/tokenize_lines [--count 100000] [--seed 1] [--characters]
                    [--pre-tokenizer FILE.json] [--added FILE.json] [--plain] tokenizer.json...

Exits with 1 and shows the first differences if there are any. --pre-tokenizer and --added replace
these parts of the tokenizer.json first, to check features the file itself does not use.
"""

import argparse
import json
import subprocess
import sys
import tempfile

import tokenizers

import corpus


def variant(path, args):
    with open(path, encoding="utf-8") as f:
        spec = json.load(f)
    if args.pre_tokenizer:
        with open(args.pre_tokenizer, encoding="utf-8") as f:
            spec["pre_tokenizer"] = json.load(f)
    if args.added:
        with open(args.added, encoding="utf-8") as f:
            flags = json.load(f)
        for token in spec["added_tokens"]:
            token.update(flags.get(token["content"], {}))
    if args.plain:
        spec["added_tokens"] = []
    return json.dumps(spec, ensure_ascii=False)


def compare(path, strings, args):
    text = variant(path, args)
    reference = tokenizers.Tokenizer.from_str(text)
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as spec, \
            tempfile.TemporaryFile("w+", encoding="utf-8") as lines:
        spec.write(text)
        spec.flush()
        for s in strings:
            lines.write(json.dumps(s) + "\n")
        lines.seek(0)
        command = [args.tool, path if args.plain else spec.name] + (["--plain"] if args.plain else [])
        out = subprocess.run(command, stdin=lines, stdout=subprocess.PIPE, check=True, text=True).stdout
    got = [[int(i) for i in line.split()] for line in out.split("\n")[:-1]]
    if len(got) != len(strings):
        sys.exit(f"{args.tool} gave {len(got)} lines for {len(strings)} strings")
    differences = 0
    tokens = 0
    for begin in range(0, len(strings), 1000):
        batch = strings[begin:begin + 1000]
        for s, want, have in zip(batch, reference.encode_batch(batch, add_special_tokens=False), got[begin:]):
            tokens += len(want.ids)
            if want.ids != have:
                differences += 1
                if differences <= args.show:
                    print(f"  {s!r}\n    want {want.ids}\n    have {have}")
    print(f"{path}: {len(strings)} strings, {tokens} tokens, {differences} differences")
    return differences


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--count", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=5)
    parser.add_argument("--characters", action="store_true", help="every code point instead")
    parser.add_argument("--pre-tokenizer")
    parser.add_argument("--added", help="JSON object: content -> flags")
    parser.add_argument("--plain", action="store_true", help="no added tokens on either side")
    parser.add_argument("tokenizer", nargs="+")
    args = parser.parse_args()
    if args.characters:
        strings = list(corpus.each_character())
    else:
        strings = corpus.CRAFTED + corpus.random_strings(args.count, args.seed)
    sys.exit(1 if sum(compare(path, strings, args) for path in args.tokenizer) else 0)


if __name__ == "__main__":
    main()
