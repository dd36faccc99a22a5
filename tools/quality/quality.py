#!/usr/bin/env python3
"""Quality of answers over index_topk, mode, ranks and list length.

Scores the right answers of every document in one teacher-forced pass a cell, with weft-engine
--script: an answer is right when greedy decoding would give it word for word, ending included.
Results are appended to OUT/results.jsonl cell by cell; a run that was cut short goes on where it was.
An answer counts only if each of its queries saw more than K tokens and something was cut of them."""

import argparse
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import time

import captured
import documents
import report
import results
from mistakes import Mistake, Parser, find_programs, number, numbers, run, run_program

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def cell_name(mode, top_k, ranks, coverage):
    return " ".join([mode] + ([f"K={top_k}"] if top_k else []) +
                    ([f"G={ranks} coverage={coverage:g}"] if ranks else []))


def grid(args):
    """(mode, K, G, coverage); the exact cells that others are compared with come before them."""
    cells = [("dense", 0, 0, 0.0)]
    for K in args.top_k:
        cells.append(("exact", K, 0, 0.0))
        for mode in args.modes:
            cells += [(mode, K, G, c) for G in args.ranks for c in args.coverage
                      if (mode, c) == ("certified", args.coverage[0]) or mode != "certified"]
    cells += [("exact", K, 0, 0.0) for K in args.exact_top_k if K not in args.top_k]
    return cells


def run_engine(args, cell, conversations, capture):
    mode, top_k, ranks, coverage = cell
    selection = {"mode": mode} | ({"index_topk": top_k} if top_k else {})
    if ranks:
        selection["coverage"] = coverage
    script = "".join(json.dumps({"prompt_ids": c["ids"], "logprobs_from": c["answers"][0][0],
                                 "selection": selection}) + "\n" for c in conversations)
    # Exact and dense give the same bits for any number of ranks.
    command = ["mpirun", "--oversubscribe", "-n", str(ranks or 1)]
    command[1:1] = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    greatest = str(max([*args.top_k, *args.exact_top_k], default=0))  # that a request may ask for
    command += [str(args.bin / "weft-engine"), "--model", args.model, "--script", "-",
                "--index-topk", greatest, "--max-index-topk", greatest,
                "--capture", str(capture), "--capture-data", "logits", "--capture-limit", "64GB",
                "--log-level", "warn"]
    done = subprocess.run(command, input=script, text=True, stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"quality.py: weft-engine ended with exit code {done.returncode}: {' '.join(command)}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def grade(result, conversation, top_k, ranks, m):
    """One entry an answer for whose tokens all something was cut."""
    first, graded = conversation["answers"][0][0], []
    for begin, end in conversation["answers"]:
        # What the query before its first token saw: no more than K, or all in the ranks' lists.
        if begin <= top_k or (ranks and math.ceil(begin / ranks) <= m):
            graded.append(None)
            continue
        told = result["argmax"][begin - first:end - first]
        graded.append({"at": begin, "right": told == conversation["ids"][begin:end], "tokens": end - begin,
                       "logprob": sum(result["logprobs"][begin - first:end - first])})
    return graded


def add_figures(told):
    figures = [r["prefill"] for r in told if r["prefill"]]
    if not figures:
        return None
    total = sum(f["pairs"] for f in figures)
    sums = {"pairs": total,
            "mean_union": sum(f["mean_union"] * f["pairs"] for f in figures) / total}
    for key in ("pairs_covered", "second_rounds"):
        if key in figures[0]:
            sums[key] = sum(f[key] for f in figures)
    return sums


def write_script(path, conversations):
    """The documents with their questions as a script of weft-engine, scored in exact mode."""
    path.write_text("".join(json.dumps({"prompt_ids": c["ids"], "logprobs_from": c["answers"][0][0],
                                        "selection": {"mode": "exact"}}) + "\n"
                            for c in conversations))


def list_length(args, cell):
    mode, top_k, ranks, coverage = cell
    if not ranks:
        return 0
    told = run_program([args.bin / "weft-plan", "select", "--top-k", top_k, "--ranks", ranks,
                        "--coverage", coverage, "--json"])
    return json.loads(told)["m_exact"]


def run_cell(args, cell, conversations):
    mode, top_k, ranks, _ = cell
    exact = args.out / f"exact-K{top_k}.safetensors"
    if ranks and not exact.exists():
        raise Mistake(f"{exact} is gone, with which {cell_name(*cell)} is to be compared; take "
                      f"exact K={top_k} out of {args.out / 'results.jsonl'}, and it runs again")
    m = list_length(args, cell)
    capture = args.out / (cell_name(*cell).replace(" ", "-").replace("=", "") + ".safetensors")
    told = run_engine(args, cell, conversations, capture)
    graded = [grade(r, c, top_k, ranks, m) for r, c in zip(told, conversations)]
    if ranks:
        sums = captured.answer_divergences(exact, capture, conversations)
        for document, kl in zip(graded, sums):
            for answer, value in zip(document, kl):
                if answer:
                    answer["kl"] = value
        capture.unlink()
    if mode == "dense":
        capture.unlink()
    return {"mode": mode, "top_k": top_k, "ranks": ranks, "m": m,
            "selection": add_figures(told),
            "documents": [[a for a in document if a] for document in graded]}


def modes(text):
    for mode in text.split(","):
        if mode not in ("interleaved", "certified"):
            raise argparse.ArgumentTypeError(f"must be of interleaved, certified, got '{mode}'")
    return list(dict.fromkeys(text.split(",")))


def parse():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                    epilog="Exit codes: 0; 1 when the engine fails; 2 for a bad command line or file.")
    parser.add_argument("--out", type=pathlib.Path, help="folder of the results")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin",
                        help="folder of the programs (default build/bin)")
    parser.add_argument("--model", default=str(ROOT / "deploy/models/demo"),
                        help="the model's Hugging Face folder (default deploy/models/demo)")
    parser.add_argument("--documents", default=str(HERE / "documents.jsonl"),
                        help="a JSON line each, as in deploy/examples (default: documents.jsonl "
                        "beside this program)")
    parser.add_argument("--first", type=number(int, 0, 10**9), default=0,
                        help="only so many documents; 0: all (default)")
    parser.add_argument("--top-k", type=numbers(int, 1, 65536, empty=True), default="256,64,16",
                        help="K, for exact and for --modes (default 256,64,16)")
    parser.add_argument("--exact-top-k", type=numbers(int, 1, 1 << 20, empty=True),
                        default="8,32,1024,128,512",
                        help="further K, for exact alone (default 8,32,1024,128,512)")
    parser.add_argument("--modes", type=modes, default="interleaved",
                        help="interleaved, certified (default interleaved)")
    parser.add_argument("--ranks", type=numbers(int, 1, 4096, empty=True), default="4,8",
                        help="G (default 4,8); empty: exact alone")
    parser.add_argument("--coverage", type=numbers(float, 0, 1, open_low=True), default="0.99,0.5",
                        help="which give m (default 0.99,0.5; certified takes the first)")
    parser.add_argument("--report", action="store_true",
                        help="only print a table for each model and set of documents in OUT")
    parser.add_argument("--script", type=pathlib.Path,
                        help="only write the documents to this file, for weft-engine --script")
    args = parser.parse_args()
    if (args.out is None) == (args.script is None):
        parser.error("give --out or --script")
    if args.report and args.out is None:
        parser.error("--report needs --out")
    return args


def main():
    args = parse()
    if args.report:
        return results.print_report(args.out / "results.jsonl")
    find_programs(args.bin, ["weft-tokenize"] if args.script else
                  ["weft-tokenize", "weft-plan", "weft-engine"])
    if not args.script and not shutil.which("mpirun"):
        raise Mistake("there is no mpirun in PATH, which starts weft-engine's ranks; install Open MPI")
    conversations, digest = documents.load(args.documents, args.bin / "weft-tokenize", args.model)
    conversations = conversations[:args.first or None]
    if args.script:
        return write_script(args.script, conversations)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "results.jsonl"
    key = f"{digest} {len(conversations)} {args.model}"
    done = {cell["name"]: cell for cell in results.read_cells(path).get(key, [])}
    cells = [c for c in grid(args) if cell_name(*c) not in done]
    begin = time.time()
    for i, cell in enumerate(cells):
        left = f", about {(time.time() - begin) / i * (len(cells) - i) / 60:.0f} min left" if i else ""
        print(f"cell {i + 1} of {len(cells)}: {cell_name(*cell)}{left}", file=sys.stderr, flush=True)
        found = run_cell(args, cell, conversations) | {"name": cell_name(*cell), "key": key}
        results.append(path, found)
        done[found["name"]] = found
    print(report.table(list(done.values())))


if __name__ == "__main__":
    run(main)
