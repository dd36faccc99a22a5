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
import subprocess
import sys
import time

import captured
import documents
import report

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
    greatest = str(max([*args.top_k, *args.exact_top_k]))  # that a request may ask for
    command += [str(args.bin / "weft-engine"), "--model", args.model, "--script", "-",
                "--index-topk", greatest, "--max-index-topk", greatest,
                "--capture", str(capture), "--capture-data", "logits", "--capture-limit", "64GB",
                "--log-level", "warn"]
    done = subprocess.run(command, input=script, text=True, stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"weft-engine ended with exit code {done.returncode}: {' '.join(command)}")
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


def add_figures(results):
    figures = [r["prefill"] for r in results if r["prefill"]]
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
    told = subprocess.run([args.bin / "weft-plan", "select", "--top-k", str(top_k), "--ranks",
                           str(ranks), "--coverage", str(coverage), "--json"], check=True,
                          stdout=subprocess.PIPE, text=True)
    return json.loads(told.stdout)["m_exact"]


def run_cell(args, cell, conversations):
    mode, top_k, ranks, _ = cell
    m = list_length(args, cell)
    capture = args.out / (cell_name(*cell).replace(" ", "-").replace("=", "") + ".safetensors")
    results = run_engine(args, cell, conversations, capture)
    graded = [grade(r, c, top_k, ranks, m) for r, c in zip(results, conversations)]
    if ranks:
        exact = args.out / f"exact-K{top_k}.safetensors"
        sums = captured.answer_divergences(exact, capture, conversations)
        for document, kl in zip(graded, sums):
            for answer, value in zip(document, kl):
                if answer:
                    answer["kl"] = value
        capture.unlink()
    if mode == "dense":
        capture.unlink()
    return {"mode": mode, "top_k": top_k, "ranks": ranks, "m": m,
            "selection": add_figures(results),
            "documents": [[a for a in document if a] for document in graded]}


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda kind: lambda text: [kind(part) for part in text.split(",") if part]
    parser.add_argument("--out", type=pathlib.Path, help="folder of the results")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin",
                        help="folder of the programs")
    parser.add_argument("--model", default=str(ROOT / "deploy/models/demo"))
    parser.add_argument("--documents", default=str(HERE / "documents.jsonl"),
                        help="a JSON line each, as in deploy/examples")
    parser.add_argument("--first", type=int, default=0, help="only so many documents; 0: all")
    parser.add_argument("--top-k", type=numbers(int), default="256,64,16",
                        help="K, for exact and for --modes (default 256,64,16)")
    parser.add_argument("--exact-top-k", type=numbers(int), default="8,32,1024,128,512",
                        help="further K, for exact alone (default 8,32,1024,128,512)")
    parser.add_argument("--modes", type=lambda text: text.split(","), default="interleaved",
                        help="interleaved, certified (default interleaved)")
    parser.add_argument("--ranks", type=numbers(int), default="4,8", help="G (default 4,8)")
    parser.add_argument("--coverage", type=numbers(float), default="0.99,0.5",
                        help="which give m (default 0.99,0.5; certified takes the first)")
    parser.add_argument("--report", action="store_true",
                        help="only print a table for each model and set of documents in OUT")
    parser.add_argument("--script", type=pathlib.Path,
                        help="only write the documents to this file, for weft-engine --script")
    args = parser.parse_args()
    for mode in args.modes:
        if mode not in ("interleaved", "certified"):
            parser.error(f"--modes must be of interleaved, certified, got '{mode}'")
    if (args.out is None) == (args.script is None):
        parser.error("give --out or --script")
    if args.report and args.out is None:
        parser.error("--report needs --out")
    return args


def read_cells(path):
    """Those of every study in the folder: {key: [cell]}, the last of each name."""
    studies = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        cell = json.loads(line)
        studies.setdefault(cell["key"], {})[cell["name"]] = cell
    return {key: list(cells.values()) for key, cells in studies.items()}


def print_report(path):
    studies = read_cells(path)
    if not studies:
        sys.exit(f"no results in {path}")
    for key, cells in studies.items():
        if len(studies) > 1:
            print(f"documents and model: {key}\n")
        print(report.table(cells))


def main():
    args = parse()
    if args.report:
        return print_report(args.out / "results.jsonl")
    conversations, digest = documents.load(args.documents, args.bin / "weft-tokenize", args.model)
    conversations = conversations[:args.first or None]
    if args.script:
        return write_script(args.script, conversations)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "results.jsonl"
    key = f"{digest} {len(conversations)} {args.model}"
    done = {cell["name"]: cell for cell in read_cells(path).get(key, [])}
    cells = [c for c in grid(args) if cell_name(*c) not in done]
    begin = time.time()
    for i, cell in enumerate(cells):
        left = f", about {(time.time() - begin) / i * (len(cells) - i) / 60:.0f} min left" if i else ""
        print(f"cell {i + 1} of {len(cells)}: {cell_name(*cell)}{left}", file=sys.stderr, flush=True)
        found = run_cell(args, cell, conversations) | {"name": cell_name(*cell), "key": key}
        with path.open("a") as file:
            file.write(json.dumps(found) + "\n")
        done[found["name"]] = found
    print(report.table(list(done.values())))


if __name__ == "__main__":
    main()
